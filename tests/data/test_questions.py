"""The built-in passages: one answer to every question, and neighbours that are hard to tell."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from gradspace.data import check_dataset, open_dataset
from gradspace.data.questions import FAMILY, LARGEST, QUESTIONS_EACH, people
from gradspace.data.questions.people import CLUES
from gradspace.data.questions.write import QUESTIONS, SENTENCES
from gradspace.data.vocabulary import UNKNOWN, Vocabulary


def test_passages_have_five_or_six_sentences_and_five_questions() -> None:
    split = open_dataset("questions", num_train=60).splits["train"]
    assert split.passages is not None
    assert {passage.count(".") for passage in split.passages} == {5, 6}
    assert np.bincount(split.image_of_caption).tolist() == [QUESTIONS_EACH] * 60
    for index in range(60):
        asked = split.captions[index * QUESTIONS_EACH : (index + 1) * QUESTIONS_EACH]
        assert len(set(asked)) == QUESTIONS_EACH
    assert all(question.endswith("?") for question in split.captions)
    assert not any("{" in text or " a a" in text for text in (*split.passages, *split.captions))


def test_the_same_every_time_and_the_first_of_a_larger_set() -> None:
    small, large, other = (
        open_dataset("questions", num_train=size, num_dev=5, num_test=5, seed=seed).splits["train"]
        for size, seed in ((30, 0), (50, 0), (30, 1))
    )
    assert small.passages is not None
    assert large.passages is not None
    assert list(large.passages[:30]) == list(small.passages)
    assert large.captions[:150] == small.captions
    assert other.passages != small.passages


@pytest.mark.parametrize("number", range(3))
def test_every_clue_names_one_person_of_a_split(number: int) -> None:
    everybody = [asdict(person) for person in people(number, 1000, seed=0)]
    for clue in CLUES:
        assert len({tuple(person[name] for name in clue) for person in everybody}) == 1000, clue


def test_questions_ask_with_a_clue_that_the_passage_tells() -> None:
    """Read from the templates which fact a sentence states."""
    told_by = {
        fact: topic
        for topic, ways in SENTENCES.items()
        for fact in CLUE_FACTS
        if all(f"{{{fact}}}" in way for way in ways)
    }
    for needed, ways in QUESTIONS:
        for way in ways:
            asked = {fact for fact in CLUE_FACTS if f"{{{fact}}}" in way}
            assert any(set(clue) <= asked for clue in CLUES), way
            introduced = {"first", "last", "town", "job"}
            assert {told_by[fact] for fact in asked - introduced} <= needed, way


CLUE_FACTS = sorted({fact for clue in CLUES for fact in clue})


def test_relatives_have_more_in_common_than_strangers() -> None:
    everybody = [list(asdict(person).values()) for person in people(0, 400, seed=0)]

    def alike(distance: int) -> float:
        pairs = [(i, i + distance) for i in range(0, 400 - distance, FAMILY)]
        return float(
            np.mean(
                [
                    sum(a == b for a, b in zip(everybody[i], everybody[j], strict=True))
                    for i, j in pairs
                ]
            )
        )

    assert alike(1) > 5  # of 13 facts
    assert alike(FAMILY) < 2


def test_training_knows_nearly_all_words_of_the_tests() -> None:
    splits = open_dataset("questions").splits
    train, test = splits["train"], splits["test"]
    vocabulary = Vocabulary.build([*train.captions, *(train.passages or ())])
    codes = [vocabulary.encode(text) for text in (*test.captions, *(test.passages or ()))]
    unknown = sum(code.count(UNKNOWN) for code in codes)
    assert unknown == 0


def test_sizes_are_checked_and_reported() -> None:
    with pytest.raises(
        ValueError, match=f"num_train of questions should be less than or equal to {LARGEST}"
    ):
        open_dataset("questions", num_train=LARGEST + 1)
    assert len(people(0, LARGEST, seed=0)) == LARGEST
    text = str(check_dataset("questions", num_train=20, num_dev=4, num_test=4))
    assert "train: 20 passages, 100 questions" in text
    assert "questions per passage: 5\n" in text
    assert "no problems" in text
