"""Tab-separated files with base64 features, as bottom-up-attention, LXMERT and VinVL write them.

The rows are `image_id, ..., num_boxes, boxes, features` (bottom-up-attention has 6 columns, LXMERT
10), or `key, num_boxes, features` (VinVL's features.tsv), or `key` and a JSON (VinVL's
predictions.tsv), whose `objects` have a `feature` each, or which has `num_boxes` and `features`.
"""

from __future__ import annotations

import binascii
import json
from base64 import b64decode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradspace.data.cache import made_once, place_of
from gradspace.data.dataset import Indices
from gradspace.data.regions.source import Regions, from_bytes
from gradspace.progress import Progress

LONGEST_ID = 1024
Tell = Callable[[int], None]
"""Report of how many bytes of a file were read."""


class TsvRegions:
    """Rows of some .tsv files, whose places are found once by reading the files completely."""

    def __init__(self, paths: Sequence[Path], progress: Progress | None = None) -> None:
        self.paths = paths
        self.ids: list[str] = []
        self._rows: list[tuple[Path, int]] = []
        total = sum(path.stat().st_size for path in paths)
        before = 0
        for path in paths:
            size = path.stat().st_size

            def tell(done: int, before: int = before) -> None:
                if progress:
                    progress(before + done, total)

            ids, starts = _known_rows(path, tell)
            self.ids += ids
            self._rows += [(path, start) for start in starts.tolist()]
            before += size

    def load(self, place: int) -> Regions:
        path, start = self._rows[place]
        with open(path, "rb") as file:
            file.seek(start)
            line = file.readline().rstrip(b"\r\n")
        what = f"the row of {self.ids[place]!r} in {path}"
        fields = line.split(b"\t")
        try:
            if len(fields) == 2:
                return _of_json(json.loads(fields[1]), what)
            number = int(fields[1] if len(fields) == 3 else fields[-3])
            return from_bytes(b64decode(fields[-1], validate=True), number, what)
        except (binascii.Error, json.JSONDecodeError, IndexError, TypeError, KeyError) as error:
            raise ValueError(f"{what} cannot be read: {error}") from None
        except ValueError as error:
            known = str(error).startswith(what)
            raise error if known else ValueError(f"{what} cannot be read: {error}") from None


def _of_json(value: Any, what: str) -> Regions:
    if "objects" in value:
        features = [b64decode(one["feature"], validate=True) for one in value["objects"]]
        if len({len(one) for one in features}) > 1:
            raise ValueError(f"{what} has objects whose features differ in length")
        return from_bytes(b"".join(features), len(features), what)
    return from_bytes(b64decode(value["features"], validate=True), int(value["num_boxes"]), what)


def _known_rows(path: Path, tell: Tell) -> tuple[list[str], Indices]:
    """Find ids and offsets of the rows, and cache them, as some files have 100 GB."""
    status = path.stat()

    def make(folder: Path) -> None:
        lines = path.with_suffix(".lineidx")
        ids, starts = _by_lineidx(path, lines) if lines.is_file() else _by_reading(path, tell)
        (folder / "ids.json").write_text(json.dumps(ids))
        np.save(folder / "starts.npy", np.array(starts, np.int64))

    place = place_of("rows", path.absolute(), status.st_size, status.st_mtime_ns)
    folder = made_once(place, make)
    ids: list[str] = json.loads((folder / "ids.json").read_text())
    return ids, np.load(folder / "starts.npy", allow_pickle=False)


def _by_reading(path: Path, tell: Tell) -> tuple[list[str], list[int]]:
    ids, starts, at = [], [], 0
    with open(path, "rb") as file:
        for line in file:
            if line.strip():
                ids.append(_id(line, path, at))
                starts.append(at)
            at += len(line)
            tell(at)
    return ids, starts


def _by_lineidx(path: Path, lines: Path) -> tuple[list[str], list[int]]:
    """Read the offset of every row from the .lineidx that VinVL has beside its files."""
    ids, starts = [], []
    try:
        listed = [int(line) for line in lines.read_text().split()]
    except ValueError:
        raise ValueError(f"{lines} must contain only numbers: delete it") from None
    with open(path, "rb") as file:
        for start in listed:
            file.seek(max(start - 1, 0))
            before = file.read(1) if start else b"\n"
            if before != b"\n":
                raise ValueError(f"{lines} does not belong to {path.name}: delete it")
            ids.append(_id(file.read(LONGEST_ID), path, start))
            starts.append(start)
    return ids, starts


def _id(line: bytes, path: Path, at: int) -> str:
    name, tab, _ = line[:LONGEST_ID].partition(b"\t")
    if not tab:
        raise ValueError(f"{path} has no row of features at byte {at:,}: expected an id and a tab")
    return name.decode("utf-8", "replace").strip()
