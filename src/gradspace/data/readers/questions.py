"""The built-in dataset `questions`: passages about invented people, five questions each."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field

from gradspace.data.dataset import Dataset, Split, make_split
from gradspace.data.questions import LARGEST, people, write_passage, write_questions
from gradspace.data.readers.registry import reader

Size = Annotated[int, Field(ge=1, le=LARGEST)]
WorldSeed = Annotated[int, Field(ge=0)]
_TEXT = 1


@reader("questions")
def open_questions(
    *, num_train: Size = 1000, num_dev: Size = 200, num_test: Size = 500, seed: WorldSeed = 0
) -> Dataset:
    """Passages about invented people, with questions that only one of them answers."""
    sizes = {"train": num_train, "dev": num_dev, "test": num_test}
    splits = {
        name: _open_split(name, number, size, seed)
        for number, (name, size) in enumerate(sizes.items())
    }
    return Dataset("questions", splits)


def _open_split(name: str, number: int, size: int, seed: int) -> Split:
    passages, described = [], []
    for index, person in enumerate(people(number, size, seed)):
        rng = np.random.default_rng([seed, number, index, _TEXT])
        passage, told = write_passage(person, rng)
        passages.append(passage)
        described.append((f"{name}-{index:06d}", write_questions(person, told, rng)))
    return replace(make_split(name, described), passages=passages)
