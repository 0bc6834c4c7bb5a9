"""Files of word vectors as they are shared, and what is wrong with others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gradspace.data.word_vectors import read_word_vectors

WORDS = {"the": 4, "dog": 5, "naïve": 6, ".": 7, "unseen": 8}
GLOVE = "the 0.5 -1 2e-1\ndog 1 2 3\ncat 7 7 7\nnaïve -1 -2 -3\n"


@pytest.mark.parametrize(
    "text",
    [
        GLOVE,
        f"4 3\n{GLOVE}",  # word2vec
        GLOVE.replace("\n", " \n"),  # fastText ends its lines so
        GLOVE.replace("\n", "\r\n"),
        GLOVE + "dog 9 9 9\n",  # the first of two counts
        GLOVE + ". . . 1 2 3\n",  # a word of GloVe 840B with spaces in it
        GLOVE.removesuffix("\n"),
    ],
)
def test_words_have_the_numbers_of_their_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "vectors.txt").write_text(text, newline="")
    found = read_word_vectors(tmp_path / "vectors.txt", WORDS, 3)
    assert {number: vector.tolist() for number, vector in found.items()} == {
        4: [0.5, -1, np.float32(0.2)],
        5: [1, 2, 3],
        6: [-1, -2, -3],
    }


def test_a_number_is_a_word_as_well(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("2 0.5\n3 1.5\n")
    assert read_word_vectors(tmp_path / "one.txt", {"2": 0}, 1)[0].tolist() == [0.5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("the 1 2\n", r"vectors of width 2, and model.word_width is 3: set model.word_width=2"),
        ("9 300\nthe 1\n", "vectors of width 300, and model.word_width is 3"),
        ("a 1 2 3\nb 1 2 3\n", "has none of the 5 words of the vocabulary; expected a text file"),
        ("a 1 2 3\nthe 1 x 3\n", "line 2 of .* must have only numbers after its word"),
        ("a 1 2 3\nthe 1 2\n", "line 2 of .* must have 3 finite numbers after its word"),
        ("the 1 nan 3\n", "line 1 of .* must have 3 finite numbers after its word"),
        ("", "does not begin with a word and its numbers; expected a text file with a word"),
        ('{"words":["the"]}', "does not begin with a word and its numbers"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_word_vectors(path, WORDS, 3)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.txt does not exist: expected a text file with"):
        read_word_vectors(tmp_path / "none.txt", WORDS, 3)
