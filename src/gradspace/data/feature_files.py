"""Features on disk: .npy files that are read row by row, and written in a resumable way.

A features folder has two files per split: `train.npy` with one row per image, and `train.json`,
which describes the rows and counts those that are on disk.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isqrt, prod
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from gradspace.data.dataset import Features, Indices, PickedFeatures, RegionKind, Split
from gradspace.data.json_files import read_json
from gradspace.files import check_is_file, write_atomically

DTYPES = ("float16", "float32")
WHAT = "the description of features"


class FeatureFile:
    """Rows of one .npy, [images, width] or [images, regions, width], float16 or float32.

    Rows are read into a new array on request. The file is never mapped into memory, so that the
    process stays as small as its batches even for a file of 31 GiB, and it is opened for every
    read, so that threads, forked and spawned workers need no special care.
    """

    def __init__(self, path: Path) -> None:
        check_is_file(path.absolute(), "features, an .npy or a folder of them")
        try:
            rows = np.lib.format.open_memmap(path, mode="r")
        except (ValueError, OSError) as error:
            raise ValueError(f"{path} is not a complete .npy file: {error}") from error
        if rows.dtype.name not in DTYPES or rows.ndim not in (2, 3):
            raise ValueError(
                f"{path} must be [images, width] or [images, regions, width] of float16 or "
                f"float32, got {rows.dtype.name} of shape {list(rows.shape)}"
            )
        if not rows.flags.c_contiguous:
            raise ValueError(f"{path} is in Fortran order; save np.ascontiguousarray of it")
        self.path = path
        self.dtype = rows.dtype
        self.shape: tuple[int, ...] = rows.shape[1:]
        self.grid: tuple[int, int] | None = None
        """Rows and columns, if the regions are known to be the cells of a grid."""
        self.regions: RegionKind = "detector"
        self.whole = False
        """Whether the regions cover the whole picture rather than its middle square."""
        self._num_rows: int = rows.shape[0]
        self._start: int = rows.offset

    def __len__(self) -> int:
        return self._num_rows

    def load(self, index: int) -> NDArray[np.float32]:
        row: NDArray[np.float32] = self.gather(np.array([index]))[0]
        return row

    def gather(self, indices: Indices) -> NDArray[np.float32]:
        """Read rows [len(indices), *shape], in the order of the file."""
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self):
            raise IndexError(f"rows must be from 0 to {len(self) - 1}, got {indices.tolist()}")
        rows = np.empty((len(indices), *self.shape), self.dtype)
        row_bytes = prod(self.shape) * self.dtype.itemsize
        with open(self.path, "rb", buffering=0) as file:
            for place in np.argsort(indices):
                file.seek(self._start + int(indices[place]) * row_bytes)
                if file.readinto(rows[place]) != row_bytes:
                    raise ValueError(f"{self.path} became shorter while it was read")
        return rows.astype(np.float32, copy=False)


def write_header(file: IO[bytes], shape: tuple[int, ...], dtype: str) -> None:
    """Write the beginning of an .npy, whose rows are then appended one after the other."""
    description = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, description)


@dataclass(frozen=True, kw_only=True)
class FeatureRecord:
    """Description of a feature file; `num_done` rows are on disk."""

    backbone: str
    names_sha256: str
    num_images: int
    shape: tuple[int, ...]
    dtype: str
    regions: RegionKind = "grid"
    size: int | None = None
    """Size of the pictures, if it is not the backbone's own."""
    whole: bool = False
    """Whether pictures were squeezed into a square instead of cropped to their middle."""
    num_done: int = 0


class FeatureWriter:
    """Writer of the features of one split, in order; it can be killed without losing them.

    Examples:
        with FeatureWriter(folder, split, (49, 2048), backbone="resnet50") as writer:
            start = writer.num_done
            reading = PictureReading(crop)
            for images in image_batches(split, batch_size=64, reading=reading, start=start):
                writer.append(backbone(images).numpy())
    """

    def __init__(
        self,
        folder: Path,
        split: Split,
        shape: tuple[int, ...],
        *,
        backbone: str,
        dtype: Literal["float16", "float32"] = "float16",
        regions: RegionKind = "grid",
        size: int | None = None,
        whole: bool = False,
    ) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"dtype must be float16 or float32, got {dtype!r}")
        self._array, self._json = _paths(folder, split.name)
        self._record = FeatureRecord(
            backbone=backbone,
            names_sha256=_names_hash(split.image_names),
            num_images=len(split.image_names),
            shape=shape,
            dtype=dtype,
            regions=regions,
            size=size,
            whole=whole,
        )
        if self._json.exists() and self._array.exists():
            self._continue()
        else:
            self._create()
        self._file = open(self._array, "r+b")  # noqa: SIM115
        self._start = os.path.getsize(self._array) - self._num_bytes(self._record.num_images)

    @property
    def num_done(self) -> int:
        """Number of rows on disk, which is the index of the next image."""
        return self._record.num_done

    def append(self, features: NDArray[Any]) -> None:
        """Write the features of the next images; they count as done once they are on disk."""
        record = self._record
        after = self.num_done + len(features)
        if features.shape[1:] != record.shape or after > record.num_images:
            raise ValueError(
                f"features must be at most {record.num_images - self.num_done} rows of shape "
                f"{list(record.shape)}, got shape {list(features.shape)}"
            )
        with np.errstate(over="ignore"):
            rows = np.ascontiguousarray(features, dtype=record.dtype)
        if not np.isfinite(rows).all():
            raise ValueError(
                f"features of images {self.num_done} to {after - 1} are NaN, infinite or too large "
                f"for {record.dtype}"
            )
        self._file.seek(self._start + self._num_bytes(self.num_done))
        self._file.write(rows.data)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._save(replace(record, num_done=after))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> FeatureWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _create(self) -> None:
        """Create a sparse file of zeros; the record is written last and makes it valid."""
        record = self._record
        with write_atomically(self._array, "wb") as file:
            write_header(file, (record.num_images, *record.shape), record.dtype)
            file.truncate(file.tell() + self._num_bytes(record.num_images))
        self._save(record)

    def _continue(self) -> None:
        found = read_json(self._json, FeatureRecord, WHAT)
        if not found.num_done:
            self._create()
            return
        if replace(found, num_done=0) != self._record:
            raise ValueError(
                f"{self._array} has features of other images or another backbone "
                f"({found.backbone}, {found.num_images} images of shape {list(found.shape)}, "
                f"{found.dtype}{_pictures(found)}); delete it or choose another folder"
            )
        self._record = found

    def _save(self, record: FeatureRecord) -> None:
        with write_atomically(self._json) as file:
            json.dump(asdict(record), file, indent=2)
        self._record = record

    def _num_bytes(self, num_rows: int) -> int:
        return num_rows * prod(self._record.shape) * np.dtype(self._record.dtype).itemsize


def read_features(folder: Path, split: Split) -> FeatureFile:
    """Open the features that a `FeatureWriter` wrote for this split, provided they are complete."""
    array, described = _paths(folder, split.name)
    record = read_json(described, FeatureRecord, WHAT)
    if record.names_sha256 != _names_hash(split.image_names):
        raise ValueError(
            f"{array} has features of {record.num_images} images, which are not the "
            f"{len(split.image_names)} images of split {split.name!r}; compute them again"
        )
    if record.num_done < record.num_images:
        raise ValueError(
            f"{array} has features of {record.num_done} of {record.num_images} images; "
            "resume the command that computes them"
        )
    features = FeatureFile(array)
    features.regions, features.whole = record.regions, record.whole
    side = isqrt(features.shape[0])
    if record.regions == "grid" and len(features.shape) == 2 and side * side == features.shape[0]:
        features.grid = (side, side)  # backbones read squares
    return features


def slice_features(path: Path, splits: Mapping[str, Split]) -> dict[str, Features]:
    """Cut one .npy into splits; its rows follow the images of the splits, in their order."""
    features = FeatureFile(path)
    sizes = [len(split.image_names) for split in splits.values()]
    if len(features) != sum(sizes):
        listed = " + ".join(f"{size} {name}" for name, size in zip(splits, sizes, strict=True))
        raise ValueError(
            f"{path} has {len(features)} rows for {sum(sizes)} images ({listed}); "
            "it needs one row per image, in that order"
        )
    parts = np.split(np.arange(len(features)), np.cumsum(sizes)[:-1])
    return {name: PickedFeatures(features, rows) for name, rows in zip(splits, parts, strict=True)}


def _pictures(record: FeatureRecord) -> str:
    size = f"{record.size} pixels" if record.size else ""
    return "".join(f", {part}" for part in (size, "whole pictures" if record.whole else "") if part)


def _paths(folder: Path, split: str) -> tuple[Path, Path]:
    return folder / f"{split}.npy", folder / f"{split}.json"


def _names_hash(names: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()
