"""Folder engine: items and vectors in segments that never change.

segments.json   the segments of the current version, and their deleted rows
NAME/           a segment: vectors.npy, float16 [rows, width], items.arrow, and vectors.faiss for
                approximate search

A version exists once `segments.json` does: after any crash, the last complete one is read. New
items form a new segment; small segments are merged when they become many. Files that no version
needs are deleted by the next process that writes.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from gradspace.files import only_writer, sync_folder, write_atomically
from gradspace.indexes.approximate import IndexKind, build
from gradspace.indexes.contract import Hit, IndexGone, Item, Kind, Vectors
from gradspace.indexes.items import (
    as_table,
    fields_of,
    items_at,
    rows_of,
    write_table,
)
from gradspace.indexes.segment import APPROXIMATE, Segment, damage_named
from gradspace.indexes.stored import check_items
from gradspace.indexes.where import Condition
from gradspace.nearest.exact import Neighbours

MOST_GONE = 0.25
"""Share of deleted rows above which a segment is rewritten."""
TRIES = 10
"""Number of attempts to open a version before another process replaces it."""


class LocalEngine:
    """Items and vectors in a folder, searched exactly."""

    def __init__(self, folder: Path, width: int) -> None:
        self.folder, self.width = folder, width
        self._seen: tuple[int, int] | None = None
        self._segments: list[Segment] = []

    def __len__(self) -> int:
        return sum(segment.kept for segment in self.segments())

    def close(self) -> None:
        self._seen, self._segments = None, []

    # --- reading --------------------------------------------------------------------------------

    def segments(self) -> list[Segment]:
        """List the segments of the current version, which another process may have written."""
        try:
            state = (self.folder / "segments.json").stat()
        except FileNotFoundError as error:
            if self._seen is not None:
                raise IndexGone(f"{self.folder} has been moved or deleted") from error
            return []
        if (state.st_ino, state.st_mtime_ns) != self._seen:
            self._segments = self._open_segments()
            self._seen = state.st_ino, state.st_mtime_ns
        return self._segments

    def _open_segments(self) -> list[Segment]:
        """Open all files of a version at once, after which it may be replaced."""
        for tries_left in reversed(range(TRIES)):
            segments = self._listed()
            try:
                for segment in segments:
                    segment.open()
            except FileNotFoundError as error:
                if not tries_left:
                    raise ValueError(
                        f"{error.filename} is missing: index again into a new folder"
                    ) from error
            else:
                break
        for segment in segments:
            if segment.vectors.shape[1] != self.width:
                raise ValueError(
                    f"{segment.folder} has vectors of width {segment.vectors.shape[1]}, and the "
                    f"index of width {self.width}: index again into a new folder"
                )
        return segments

    def _listed(self) -> list[Segment]:
        path = self.folder / "segments.json"
        with damage_named(path):
            return [
                Segment(
                    self._inside(entry["name"]),
                    entry["kind"],
                    entry["rows"],
                    np.array(entry["gone"], np.int64),
                    entry["faiss"] and tuple(entry["faiss"]),
                )
                for entry in json.loads(path.read_text(encoding="utf-8"))
            ]

    def _inside(self, name: str) -> Path:
        if not re.fullmatch("[0-9a-f]{16}", name):
            raise ValueError(f"{name!r} is not a valid name of a segment")
        return self.folder / name

    def fingerprints(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for segment in self.segments():
            table = segment.items.select(["key", "fingerprint"]).filter(pa.array(segment.is_kept))
            found.update(zip(*(column.to_pylist() for column in table.columns), strict=True))
        return found

    def fields(self) -> set[str]:
        return {name for segment in self.segments() for name in fields_of(segment.items)}

    def get(self, keys: Sequence[str]) -> list[tuple[Item, NDArray[np.float32]] | None]:
        found: dict[str, tuple[Item, NDArray[np.float32]]] = {}
        for segment in self.segments():
            rows = [row for row in rows_of(segment.items, keys).tolist() if segment.is_kept[row]]
            vectors = segment.vectors[rows].float().numpy()
            for item, vector in zip(items_at(segment.items, rows), vectors, strict=True):
                found[item.key] = item, vector
        return [found.get(key) for key in keys]

    def search(
        self, queries: NDArray[np.float32], k: int, kind: Kind, where: Sequence[Condition] = ()
    ) -> list[list[Hit]]:
        given = torch.from_numpy(np.ascontiguousarray(queries, np.float32))
        segments = [s for s in self.segments() if s.kind == kind and s.kept]
        found = [segment.find(given, k, where) for segment in segments]
        return [_best(segments, [of_all[i] for of_all in found], k) for i in range(len(given))]

    # --- writing --------------------------------------------------------------------------------

    def put(self, items: Sequence[Item], vectors: Vectors) -> None:
        halves = check_items(items, vectors, self.width)
        with self._writing() as segments:
            segments[:] = [segment.without([item.key for item in items]) for segment in segments]
            for kind in ("image", "caption"):
                rows = [row for row, item in enumerate(items) if item.kind == kind]
                if rows:
                    table = as_table([items[row] for row in rows])
                    segments.append(self._write(kind, table, [halves[rows]]))
            segments[:] = self._merged(segments)

    def remove(self, keys: Sequence[str]) -> None:
        with self._writing() as segments:
            segments[:] = self._merged([segment.without(keys) for segment in segments])

    def approximate(
        self, wanted: IndexKind | None, progress: Callable[[int, int], None] | None = None
    ) -> dict[Kind, float]:
        """Search by a faiss index from now on, or exactly again; return its recall, by kind.

        All segments of a kind are merged. Items added later are searched exactly, until this is
        called again.
        """
        now = self.segments()
        if any(_kind_of_index(segment) != wanted for segment in now) or (
            wanted is not None and len({segment.kind for segment in now}) < len(now)
        ):
            with self._writing() as segments:
                by_kind = [[s for s in segments if s.kind == kind] for kind in get_args(Kind)]
                segments[:] = [made for group in by_kind for made in self._rewritten(group)]
                if wanted is not None:
                    segments[:] = _with_indexes(segments, wanted, progress)
        return {s.kind: s.faiss[1] for s in self.segments() if s.faiss is not None}

    @contextmanager
    def _writing(self) -> Iterator[list[Segment]]:
        """Yield the list of segments for changes, and commit it as the new version."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with only_writer(self.folder):
            segments = list(self.segments())
            self._delete_unlisted()
            try:
                yield segments
                self._commit(segments)
            finally:
                self._delete_unlisted()

    def _commit(self, segments: Sequence[Segment]) -> None:
        listed = [
            {
                "name": segment.folder.name,
                "kind": segment.kind,
                "rows": segment.rows,
                "gone": segment.gone.tolist(),
                "faiss": segment.faiss,
            }
            for segment in segments
        ]
        with write_atomically(self.folder / "segments.json") as file:
            json.dump(listed, file)

    def _delete_unlisted(self) -> None:
        """Delete files that are not of the current version; open ones remain readable."""
        there = (self.folder / "segments.json").exists()
        needed = {segment.folder.name for segment in self._listed()} if there else set()
        for path in self.folder.iterdir():
            if path.is_dir() and path.name not in needed:
                shutil.rmtree(path)

    def _write(self, kind: Kind, table: pa.Table, vectors: Iterable[Vectors]) -> Segment:
        """Write a segment from parts of its vectors; it is on disk on return."""
        folder = self.folder / secrets.token_hex(8)
        folder.mkdir()
        write_table(folder / "items.arrow", table)
        header = {"descr": "<f2", "fortran_order": False, "shape": (len(table), self.width)}
        with (folder / "vectors.npy").open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for part in vectors:
                file.write(np.ascontiguousarray(part, "<f2").data)
        sync_folder(folder)
        return Segment(folder, kind, len(table))

    def _merged(self, segments: Sequence[Segment]) -> list[Segment]:
        """Drop empty segments, and merge small ones.

        A segment is merged with the one before it unless that is twice its size, so that there are
        about as many as the number of rows has binary digits, and rows are rarely copied.
        """
        merged: list[Segment] = []
        for segment in sorted(segments, key=lambda s: s.kind, reverse=True):
            group = [segment]
            while merged and merged[-1].kind == segment.kind and _small(merged[-1], group):
                group.insert(0, merged.pop())
            if len(group) > 1 or len(segment.gone) > MOST_GONE * segment.rows:
                group = self._rewritten(group)
            merged += group
        return merged

    def _rewritten(self, group: Sequence[Segment]) -> list[Segment]:
        """Merge the kept rows of several segments into one; none if there are none."""
        if not any(segment.kept for segment in group):
            return []
        tables = [segment.items.filter(pa.array(segment.is_kept)) for segment in group]
        table = pa.concat_tables(tables, promote_options="default")
        vectors = (part for segment in group for part in segment.kept_vectors())
        return [self._write(group[0].kind, table, vectors)]


def _kind_of_index(segment: Segment) -> IndexKind | None:
    return segment.faiss[0] if segment.faiss else None


def _with_indexes(
    segments: Sequence[Segment],
    wanted: IndexKind,
    progress: Callable[[int, int], None] | None,
) -> list[Segment]:
    total, before, made = sum(segment.rows for segment in segments), 0, []

    def tell(done: int) -> None:
        if progress:
            progress(before + done, total)

    for segment in segments:
        recall = build(segment.folder / APPROXIMATE, segment.vectors, wanted, tell)
        made.append(replace(segment, faiss=(wanted, recall)))
        before += segment.rows
    return made


def _small(segment: Segment, group: Sequence[Segment]) -> bool:
    return segment.kept < 2 * sum(later.kept for later in group)


def _best(segments: Sequence[Segment], found: Sequence[Neighbours], k: int) -> list[Hit]:
    """Select the best results of several segments; of equal ones the one added first."""
    hits = [
        Hit(item, score)
        for segment, (rows, scores) in zip(segments, found, strict=True)
        for item, score in zip(items_at(segment.items, rows), scores.tolist(), strict=True)
    ]
    return sorted(hits, key=lambda hit: -hit.score)[:k]
