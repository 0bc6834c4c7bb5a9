"""Segment of an index: a folder of items with their vectors, which never changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradspace.indexes.approximate import Approximate, IndexKind
from gradspace.indexes.contract import Kind
from gradspace.indexes.items import open_table, rows_of, rows_that_meet
from gradspace.indexes.where import Condition
from gradspace.nearest.exact import Neighbours, top_rows
from gradspace.scores.tiles import blocks

APPROXIMATE = "vectors.faiss"
COPIED_AT_ONCE = 65_536
"""Number of rows copied in one go when segments are merged."""


@dataclass(frozen=True)
class Segment:
    """Rows that were written together, all of one kind."""

    folder: Path
    kind: Kind
    rows: int
    gone: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Rows that are deleted, or replaced by a later segment."""
    faiss: tuple[IndexKind, float] | None = None
    """Kind of its faiss index, if any, and the recall of that index."""

    @cached_property
    def vectors(self) -> Tensor:
        """Vectors, float16 [rows, width], memory-mapped."""
        return torch.from_numpy(self._array())

    def _array(self) -> NDArray[np.float16]:
        path = self.folder / "vectors.npy"
        with damage_named(path):
            found = np.load(path, mmap_mode="c", allow_pickle=False)
            if found.dtype != np.float16 or len(found) != self.rows or found.ndim != 2:
                raise ValueError(f"{found.dtype} {list(found.shape)} where {self.rows} rows belong")
        array: NDArray[np.float16] = found
        return array

    @cached_property
    def items(self) -> pa.Table:
        path = self.folder / "items.arrow"
        with damage_named(path):
            table = open_table(path)
            if len(table) != self.rows:
                raise ValueError(f"{len(table)} items where {self.rows} belong")
        return table

    @cached_property
    def approximate(self) -> Approximate | None:
        return Approximate(self.folder / APPROXIMATE, self.vectors) if self.faiss else None

    def open(self) -> None:
        """Open all files, so that they can be read even after they are deleted."""
        _ = self.vectors, self.items, self.approximate

    @property
    def kept(self) -> int:
        return self.rows - len(self.gone)

    @cached_property
    def is_kept(self) -> NDArray[np.bool_]:
        mask = np.ones(self.rows, np.bool_)
        mask[self.gone] = False
        return mask

    def kept_vectors(self) -> Iterator[NDArray[np.float16]]:
        """Yield vectors in parts, to be copied."""
        vectors = self.vectors.numpy()
        for rows in blocks(self.rows, COPIED_AT_ONCE):
            yield vectors[rows][self.is_kept[rows]]

    def without(self, keys: Sequence[str]) -> Segment:
        gone = np.union1d(self.gone, rows_of(self.items, keys))
        return self if len(gone) == len(self.gone) else replace(self, gone=gone)

    def find(self, queries: Tensor, k: int, where: Sequence[Condition]) -> list[Neighbours]:
        mask = rows_that_meet(self.items, where) & self.is_kept if where else self.is_kept
        allowed = torch.from_numpy(mask) if where or len(self.gone) else None
        if self.approximate is not None:
            return self.approximate.search(queries, k, allowed)
        return top_rows(self.vectors, queries, k, allowed)


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Name a damaged file in an error that says what to do."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (ValueError, KeyError, TypeError, OSError, EOFError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{path} is damaged ({reason}): index again into a new folder, or restore the file"
        ) from error
