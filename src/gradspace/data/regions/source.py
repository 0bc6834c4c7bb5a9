"""Sources of region features: the ids of images, and the features of each."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gradspace.commands import pip_install
from gradspace.wording import counted

Regions = NDArray[Any]
"""Features of the regions of an image, [boxes, width], of any precision."""

_NUMBER = re.compile(r"(\d+)$")


class RegionSource(Protocol):
    """Features of many images by id."""

    @property
    def ids(self) -> Sequence[str]: ...

    def load(self, place: int) -> Regions:
        """Load the features of the image at this place among the ids; a ValueError if broken."""


def library(name: str) -> Any:
    """Import an optional package that reads one kind of file."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ValueError(
            f"these features need the package {name}: {pip_install('gradspace[regions]')}"
        ) from None


def from_bytes(data: bytes, num_boxes: int, what: str) -> Regions:
    """Interpret raw float32 bytes as `num_boxes` rows."""
    if num_boxes < 1 or not data or len(data) % (4 * num_boxes):
        raise ValueError(f"{what} has {len(data)} bytes, which is not {num_boxes} rows of float32")
    return np.frombuffer(data, "<f4").reshape(num_boxes, -1)


def find_places(ids: Sequence[str], names: Sequence[str], where: Path) -> list[int]:
    """Find the place of every image among the ids.

    An id is the name of the image, with or without folder and extension, or the number at the end
    of the name, such as 391895 for COCO_val2014_000000391895.jpg.
    """
    known: dict[str, int] = {}
    for place, written in enumerate(ids):
        for form in {written, _number(written)} - {""}:
            if known.setdefault(form, place) != place:
                raise ValueError(f"{where} has features of {written!r} twice")
    places = [_find(known, name) for name in names]
    missing = [name for name, place in zip(names, places, strict=True) if place is None]
    if missing:
        raise ValueError(
            f"{where} has no features of {counted(len(missing), 'image')} of {len(names):,}, the "
            f"first is {missing[0]!r}; it has {len(ids):,}, the first is {next(iter(ids), '')!r}"
        )
    found = [place for place in places if place is not None]
    if len(set(found)) < len(found):
        seen: dict[int, str] = {}
        for name, place in zip(names, found, strict=True):
            if place in seen:
                raise ValueError(f"{seen[place]!r} and {name!r} both match {ids[place]!r}")
            seen[place] = name
    return found


def _find(known: dict[str, int], name: str) -> int | None:
    path = PurePosixPath(name)
    forms = (name, path.name, str(path.with_suffix("")), path.stem, _number(path.stem))
    return next((known[form] for form in forms if form in known), None)


def _number(text: str) -> str:
    """Extract the number at the end, without leading zeros."""
    found = _NUMBER.search(text)
    return str(int(found[1])) if found else ""
