"""Contract of engines: items with unit vectors, the engine that stores them, and its hits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from gradspace.indexes.where import Condition, Value

Kind = Literal["image", "caption"]
Vectors = NDArray[np.float16] | NDArray[np.float32]


@dataclass(frozen=True)
class Item:
    """An image or a caption of a collection."""

    key: str
    """Unique key; for an image its path below the collection's folder."""
    kind: Kind
    text: str = ""
    """The caption itself; for an image its captions, one per line, if known."""
    image: str = ""
    """Key of the image to show, if there is one; for an image its own."""
    fingerprint: str = ""
    """Text that changes when the item changes."""
    metadata: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Hit:
    """An item that was found, with its score: the cosine of its vector and the query's."""

    item: Item
    score: float


class IndexGone(OSError):  # noqa: N818
    """An error because the files of an open index have been moved or deleted."""


class Engine(Protocol):
    """Store of an index's items with their vectors, which finds those that score highest.

    One process writes at a time, any number read. Effects of `put` and `remove` survive a crash,
    and a search sees all or none of them (except in Milvus, which has no transactions). A `put`
    must not contain a key twice. The order of equal scores is up to the engine.
    """

    def __len__(self) -> int: ...

    def put(self, items: Sequence[Item], vectors: Vectors) -> None:
        """Add items, or replace those of equal keys; vectors [items, width]."""

    def remove(self, keys: Sequence[str]) -> None:
        """Delete items; missing keys are ignored."""

    def fingerprints(self) -> dict[str, str]:
        """Return the fingerprints of all items, by key."""

    def fields(self) -> set[str]:
        """Return the names of all metadata of all items."""

    def get(self, keys: Sequence[str]) -> list[tuple[Item, NDArray[np.float32]] | None]:
        """Return items with their vectors; None for missing keys."""

    def search(
        self, queries: NDArray[np.float32], k: int, kind: Kind, where: Sequence[Condition] = ()
    ) -> list[list[Hit]]:
        """Find for every query [queries, width] the k items of a kind that score highest, in order.

        Only items that meet all conditions are found, so there may be fewer than k.
        """

    def close(self) -> None:
        """Release files and connections."""
