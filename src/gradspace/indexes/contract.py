"""What is searched: items with unit vectors, the engine that holds them, and what it finds."""

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
    """Unique: of an image its path below the collection's folder."""
    kind: Kind
    text: str = ""
    """A caption itself; of an image its captions, one a line, where they are known."""
    image: str = ""
    """The key of the image to show, where there is one: of an image its own."""
    fingerprint: str = ""
    """Another one when the item has changed."""
    metadata: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Hit:
    """An item that was found, and its score: the cosine of its vector with the query's."""

    item: Item
    score: float


class IndexGone(OSError):  # noqa: N818
    """The files of an index that is open have been moved or deleted."""


class Engine(Protocol):
    """Holds the items of an index with their vectors, and finds those that score highest.

    One process writes at a time, any number read. What `put` and `remove` have done is there after
    a crash, and a search sees all of it or nothing (but in Milvus, which has no transactions). No
    key comes twice in a `put`. Which of equal scores comes first is the engine's choice.
    """

    def __len__(self) -> int: ...

    def put(self, items: Sequence[Item], vectors: Vectors) -> None:
        """Add items, or replace those of the same key; vectors [items, width]."""

    def remove(self, keys: Sequence[str]) -> None:
        """Forget items; a key that is not there is no mistake."""

    def fingerprints(self) -> dict[str, str]:
        """Of all items, by key."""

    def fields(self) -> set[str]:
        """The names of all metadata of all items."""

    def get(self, keys: Sequence[str]) -> list[tuple[Item, NDArray[np.float32]] | None]:
        """Items with their vectors; None for a key that is not there."""

    def search(
        self, queries: NDArray[np.float32], k: int, kind: Kind, where: Sequence[Condition] = ()
    ) -> list[list[Hit]]:
        """For every query [queries, width] the k items of a kind that score highest, in order.

        Only items that meet all conditions are found: fewer than k where there are fewer.
        """

    def close(self) -> None:
        """Let go of files and connections."""
