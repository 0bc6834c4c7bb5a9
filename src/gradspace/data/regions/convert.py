"""Conversion of existing region features to a features folder, once per image, resumable."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from gradspace.data.dataset import Dataset
from gradspace.data.feature_files import FeatureWriter
from gradspace.data.regions.hdf5 import Hdf5Regions
from gradspace.data.regions.lmdb import LmdbRegions
from gradspace.data.regions.source import Regions, RegionSource, find_places
from gradspace.data.regions.tsv import TsvRegions
from gradspace.data.shards.patterns import find_shards
from gradspace.data.text_files import read_lines
from gradspace.files import check_out_folder
from gradspace.progress import Progress, Show, silently

AT_ONCE = 64
"""Number of images after which written rows are flushed to disk."""


def convert_regions(
    dataset: Dataset,
    source: Path,
    folder: Path,
    *,
    boxes: int | None = None,
    width: int | None = None,
    ids: Path | None = None,
    dtype: Literal["float16", "float32"] = "float16",
    show: Show = silently,
) -> tuple[int, ...]:
    """Write the features of every image of a dataset to a folder; return the shape of one image's.

    If images have different numbers of regions, the first `boxes` of each are kept, and images with
    fewer repeat their own. `width` and `ids` are for files without this information: the numbers
    per region, and a text file with the image of every row.
    """
    names = tuple(f"{split}.{ending}" for split in dataset.splits for ending in ("npy", "json"))
    check_out_folder(folder, "features", names)
    with show("reading features") as progress:
        found = open_regions(source, width=width, ids=ids, progress=progress)
    every = [name for split in dataset.splits.values() for name in split.image_names]
    places = find_places(found.ids, every, source)
    first = _checked(found, places[0], source)
    shape = (boxes or len(first), first.shape[1])
    with show("converting features") as progress:
        for split in dataset.splits.values():
            with FeatureWriter(
                folder, split, shape, backbone=source.name, dtype=dtype, regions="detector"
            ) as writer:
                start = len(every) - len(places)
                mine, places = places[: len(split.image_names)], places[len(split.image_names) :]
                for begin in range(writer.num_done, len(mine), AT_ONCE):
                    some = mine[begin : begin + AT_ONCE]
                    rows = [_fitted(found, place, shape, boxes, source) for place in some]
                    writer.append(np.stack(rows))
                    progress(start + writer.num_done, len(every))
    return shape


def open_regions(
    source: Path, *, width: int | None, ids: Path | None, progress: Progress | None
) -> RegionSource:
    """Open the source in a file, an LMDB folder, or the .tsv files of a pattern."""
    if (source / "data.mdb").is_file() or source.suffix in (".lmdb", ".mdb"):
        if not source.exists():
            raise ValueError(f"{source} does not exist: expected an LMDB database")
        return LmdbRegions(source, width)
    if source.suffix in (".h5", ".hdf5"):
        listed = [line.strip() for line in read_lines(ids) if line.strip()] if ids else None
        return Hdf5Regions(source, listed)
    files = [] if source.is_dir() else find_shards(source)
    if not files or not all(".tsv" in file.suffixes for file in files):
        raise ValueError(
            f"{source} is not in a known format: expected .tsv (or .tsv.0 and so on), .hdf5, .h5, "
            ".lmdb or a folder with data.mdb"
        )
    return TsvRegions(files, progress)


def _checked(found: RegionSource, place: int, source: Path) -> Regions:
    regions = found.load(place)
    if regions.ndim != 2 or not len(regions) or regions.dtype.kind != "f":
        raise ValueError(
            f"the features of {found.ids[place]!r} in {source} are {regions.dtype} of shape "
            f"{list(regions.shape)}; expected [boxes, width]"
        )
    return regions


def _fitted(
    found: RegionSource, place: int, shape: Sequence[int], boxes: int | None, source: Path
) -> Regions:
    """Cut or repeat regions, so that every image has the same number."""
    regions = _checked(found, place, source)
    name = f"{found.ids[place]!r} in {source}"
    if regions.shape[1] != shape[1]:
        raise ValueError(
            f"the regions of {name} have {regions.shape[1]} numbers, others have {shape[1]}"
        )
    if boxes is None and len(regions) != shape[0]:
        raise ValueError(
            f"{name} has {len(regions)} regions, and the first image {shape[0]}: set with --boxes "
            "how many to keep of each image; images with fewer repeat their own"
        )
    if not np.isfinite(regions).all():
        raise ValueError(f"the features of {name} are NaN or infinite")
    return regions[np.arange(shape[0]) % len(regions)]
