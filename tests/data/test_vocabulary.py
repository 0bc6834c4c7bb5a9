from __future__ import annotations

import json
from pathlib import Path

import pytest
from data.examples import FLICKR8K, needs_flickr8k

from gradspace.data import Vocabulary, open_dataset
from gradspace.data.vocabulary import END, PAD, SPECIAL, START, UNKNOWN, words

CAPTIONS = ["A dog runs.", "a DOG sleeps", "The dog, a cat!", "a dog\tand a caf\u00e9"]


def test_words_are_lower_cased_runs_of_letters_and_digits() -> None:
    assert words("Two men's T-shirts, 3.5 m_n\u2019t") == [
        *("two", "men's", "t", "shirts", "3", "5", "m", "n\u2019t"),
    ]
    assert words(" ...! ") == []
    assert words("CAF\u00c9 \u732b") == ["caf\u00e9", "\u732b"]


def test_words_seen_often_enough_are_kept_in_order() -> None:
    assert Vocabulary.build(CAPTIONS).words == (*SPECIAL, "a", "dog")
    every = Vocabulary.build(CAPTIONS, min_count=1)
    assert every.words[4:] == ("a", "dog", "and", "caf\u00e9", "cat", "runs", "sleeps", "the")
    assert len(every) == 12


def test_captions_become_numbers() -> None:
    vocabulary = Vocabulary.build(CAPTIONS)
    assert vocabulary.encode("A bird, a dog") == [START, 4, UNKNOWN, 4, 5, END]
    tokens, lengths = vocabulary.encode_batch(["a", "A bird, a dog", ""])
    assert tokens.tolist() == [
        [START, 4, END, PAD, PAD, PAD],
        [START, 4, UNKNOWN, 4, 5, END],
        [START, END, PAD, PAD, PAD, PAD],
    ]
    assert lengths.tolist() == [3, 6, 2]
    assert str(tokens.dtype) == str(lengths.dtype) == "torch.int64"
    assert vocabulary.unknown_words("A bird, a DOG: the bird") == ["bird", "the"]


def test_a_vocabulary_comes_back(tmp_path: Path) -> None:
    vocabulary = Vocabulary.build(CAPTIONS, min_count=1)
    vocabulary.save(tmp_path / "run" / "vocabulary.json")
    assert Vocabulary.load(tmp_path / "run" / "vocabulary.json") == vocabulary


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not a vocabulary: Invalid JSON"),
        ("{}", "words: Field required"),
        ('{"words": [1]}', "words.0: Input should be a valid string"),
        ('{"words": ["a"]}', "a vocabulary begins with <pad>, <start>"),
        (json.dumps({"words": [*SPECIAL, "a", "a"]}), "the word 'a' is in the vocabulary twice"),
    ],
)
def test_bad_vocabularies_are_explained(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "v.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        Vocabulary.load(path)
    with pytest.raises(ValueError, match=r"none.json does not exist: expected a vocabulary"):
        Vocabulary.load(tmp_path / "none.json")


@needs_flickr8k
def test_flickr8k_has_the_vocabulary_that_papers_train_with() -> None:
    assert 2500 < len(Vocabulary.build(open_dataset(FLICKR8K).splits["train"].captions)) < 3200


def test_a_masked_word_is_the_last_of_the_vocabulary_or_unknown() -> None:
    plain, masking = (Vocabulary.build(["a dog"] * 4, mask=mask) for mask in (False, True))
    assert masking.words == (*plain.words, "<mask>")
    assert (plain.mask, masking.mask) == (3, len(plain))
    assert masking.encode("a <mask>")[2] == 3, "no caption can say it"


@pytest.mark.parametrize(
    ("caption", "split"),
    [
        ("Two men's T-shirts, 3.5 m .", "two men 's t-shirts , 3.5 m ."),
        ("A dog runs. It isn't brown.", "a dog runs . it is n't brown ."),
        ("(3,500 at 5:30): stop--now ...", "( 3,500 at 5:30 ) : stop -- now ..."),
        ('the dogs\' owner says "no!"', 'the dogs \' owner says " no ! "'),
        ("She's gonna; he cannot, they'll.", "she 's gon na ; he can not , they 'll ."),
        ("Mr. Smith and St. Bernard.", "mr. smith and st. bernard ."),
        ("rock 'n' roll & $5 100%", "rock 'n ' roll & $ 5 100 %"),
        (" ...! ", "... !"),
        ("", ""),
    ],
)
def test_marks_are_words_on_request(caption: str, split: str) -> None:
    """As NLTK's tokenizer splits the lower-cased caption, quotes as they are written."""
    assert words(caption, punctuation=True) == split.split()


def test_the_vocabulary_of_a_run_says_how_captions_are_split(tmp_path: Path) -> None:
    vocabulary = Vocabulary.build(["A man's dog."] * 4, punctuation=True)
    assert vocabulary.encode("a man .") == [
        START,
        vocabulary.words.index("a"),
        *(vocabulary.words.index(word) for word in ("man", ".")),
        END,
    ]
    spans = vocabulary.spans("A man's dog.")
    assert ["A man's dog."[slice(*span)] for span in spans if span] == [
        *("A", "man", "'s", "dog", ".")
    ]
    vocabulary.save(tmp_path / "v.json")
    assert Vocabulary.load(tmp_path / "v.json") == vocabulary
    (tmp_path / "old.json").write_text(json.dumps({"words": vocabulary.words}))
    assert not Vocabulary.load(tmp_path / "old.json").punctuation, "of an earlier version"


def test_every_letter_of_a_caption_is_in_one_word() -> None:
    for caption in (
        "a b-c d's e, f. g 'n' h",
        "''tis \"quoted\" . . . x.y.z. n't",
        "a\u2019s \u00ab x \u00bb",
    ):
        found = "".join(words(caption, punctuation=True))
        assert found == caption.replace(" ", "")
