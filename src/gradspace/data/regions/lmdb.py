"""LMDB databases that store the features of an image under its id.

A value is an .npy, an .npz with `features`, `feat` or `x`, or plain float32 numbers, whose width
the user has to give. Pickled values are refused, as loading them would execute their code.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np

from gradspace.data.regions.source import Regions, from_bytes, library

ARRAYS = ("features", "feat", "x")
NPY, NPZ, PICKLED = b"\x93NUMPY", b"PK\x03\x04", b"\x80"


class LmdbRegions:
    """Values of one database."""

    def __init__(self, path: Path, width: int | None) -> None:
        lmdb = library("lmdb")
        self.path = path
        self.width = width
        try:
            self._database = lmdb.open(
                str(path), subdir=path.is_dir(), readonly=True, lock=False, readahead=False
            )
            with self._database.begin() as reading:
                keys: list[bytes] = list(reading.cursor().iternext(values=False))
        except lmdb.Error as error:
            raise ValueError(f"{path} is not a complete LMDB database: {error}") from None
        # Some databases also contain a list of their own keys, which is not an image.
        self._keys = [key for key in keys if key not in (b"keys", b"__keys__", b"__len__")]
        self.ids = [key.decode("utf-8", "replace") for key in self._keys]

    def load(self, place: int) -> Regions:
        with self._database.begin() as reading:
            data = bytes(reading.get(self._keys[place]) or b"")
        what = f"the value of {self.ids[place]!r} in {self.path}"
        if data.startswith(PICKLED):
            raise ValueError(
                f"{what} is pickled, and reading it could run any code: ask its author to store "
                "the features with numpy.save instead"
            )
        if data.startswith((NPY, NPZ)):
            return _of_numpy(data, what)
        if self.width is None:
            raise ValueError(
                f"{what} is neither an .npy nor an .npz: give --width, the numbers of a region, if "
                "it is plain float32"
            )
        return from_bytes(data, len(data) // (4 * self.width), what)


def _of_numpy(data: bytes, what: str) -> Regions:
    try:
        found = np.load(io.BytesIO(data), allow_pickle=False)
        if isinstance(found, np.ndarray):
            return found
        name = next((name for name in ARRAYS if name in found), None)
        if name is None:
            raise ValueError(f"it has {', '.join(found)}; expected {' or '.join(ARRAYS)}")
        array: Regions = found[name]
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{what} cannot be read: {error}") from None
    return array
