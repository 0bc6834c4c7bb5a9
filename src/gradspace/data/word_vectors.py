"""Word vectors from a text file with a word and its numbers on each line, as in GloVe.

word2vec's text format, whose first line gives the number of vectors, is supported as well. The file
is read once, line by line; only the numbers of requested words are parsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradspace.files import check_is_file

EXPECTED = "a text file with a word and its numbers on each line, as in GloVe"


def read_word_vectors(
    path: Path, numbers: Mapping[str, int], width: int
) -> dict[int, NDArray[np.float32]]:
    """Read the vectors of words by number, for those that the file has; the first of each.

    A ValueError is raised if the file has vectors of another width, or none of the words.
    """
    check_is_file(path, EXPECTED)
    wanted = {word.encode(): number for word, number in numbers.items()}
    found: dict[int, NDArray[np.float32]] = {}
    with path.open("rb") as file:
        _check_width(path, file.readline(), width)
        file.seek(0)
        for place, line in enumerate(file, start=1):
            word, _, rest = line.partition(b" ")
            number = wanted.get(word)
            if number is None or number in found:
                continue
            values = rest.split()
            if len(values) <= width:  # a longer line is of a word with spaces in it
                found[number] = _vector(values, width, f"line {place} of {path}")
    if not found:
        raise ValueError(
            f"{path} has none of the {len(numbers):,} words of the vocabulary; expected {EXPECTED}"
        )
    return found


def _check_width(path: Path, first: bytes, width: int) -> None:
    """Check the width given by the first line, which may be word2vec's header."""
    fields = first.split()
    if len(fields) < 2:
        raise ValueError(f"{path} does not begin with a word and its numbers; expected {EXPECTED}")
    is_head = len(fields) == 2 and all(field.isdigit() for field in fields)
    has = int(fields[1]) if is_head else len(fields) - 1
    if has != width:
        raise ValueError(
            f"{path} has vectors of width {has}, and model.word_width is {width}: set "
            f"model.word_width={has}"
        )


def _vector(values: list[bytes], width: int, where: str) -> NDArray[np.float32]:
    try:
        vector = np.array([float(value) for value in values], np.float32)
    except ValueError:
        raise ValueError(f"{where} must have only numbers after its word") from None
    if len(vector) != width or not np.isfinite(vector).all():
        raise ValueError(f"{where} must have {width} finite numbers after its word")
    return vector
