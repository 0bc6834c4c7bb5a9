"""Registration of layouts: a reader is one decorated function in a file of this folder."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gradspace.data.dataset import Dataset
from gradspace.plugins import admit

Open = TypeVar("Open", bound=Callable[..., Dataset])


@dataclass(frozen=True)
class Reader:
    """Reader of one layout: how it is recognised and opened.

    Without `recognises` the dataset is not on disk, and `open(**options)` is called for its name.
    Otherwise `open(path, images, **options)` is called for a path that `recognises` accepts.
    """

    name: str
    open: Callable[..., Dataset]
    recognises: Callable[[Path], bool] | None
    looks_for: str
    elsewhere: bool = False
    """Whether `recognises` is also asked about paths that are neither files nor folders: globs."""

    @property
    def shows_progress(self) -> bool:
        return "progress" in inspect.signature(self.open).parameters

    @property
    def summary(self) -> str:
        return (self.open.__doc__ or "").strip().partition("\n")[0]


READERS: dict[str, Reader] = {}


def reader(
    name: str,
    *,
    recognises: Callable[[Path], bool] | None = None,
    looks_for: str = "",
    elsewhere: bool = False,
) -> Callable[[Open], Open]:
    """Register `open` as the reader of layout `name`.

    `open` may leave items with problems in the dataset: `problems.py` finds them for all readers.
    Its parameters with a default are the options that `open_dataset` takes for this layout, and
    `looks_for` completes the sentence "a dataset is ..." for paths that no reader recognises. Slow
    ones have a keyword `progress` without a default, and call it if it is given.
    """

    def register(open: Open) -> Open:
        admit(name, open, READERS[name].open if name in READERS else None)
        made = Reader(name, open, recognises, looks_for, elsewhere)
        if not made.summary:
            raise ValueError(f"{name!r} needs a docstring: its first line is shown to users")
        if bool(recognises) != bool(looks_for):
            raise ValueError(f"{name!r} needs both recognises and looks_for, or neither")
        READERS[name] = made
        return open

    return register
