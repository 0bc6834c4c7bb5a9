"""Mined lists: the hardest negatives of every image and every caption, in memory and on disk.

A list is one safetensors file without a date: the same mining writes the same bytes. It is mapped
into memory when it is loaded, so that only the rows in use are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradspace.data.dataset import Split, digest
from gradspace.files import check_is_file
from gradspace.scores.represented import Represented
from gradspace.tensor_files import load_tensors, save_tensors
from gradspace.wording import counted

KIND = "mined lists"
VERSION = 1
"""Version of the file format; other versions are rejected."""

Positions = NDArray[np.int32]
HalfFloats = NDArray[np.float16]


@dataclass(frozen=True, eq=False)
class MinedLists:
    """Hardest negatives of every query, the hardest first, with their scores."""

    texts_of_image: Positions
    """[images, top_texts]: captions of other images, unequal to the image's own captions."""
    text_scores: HalfFloats
    images_of_text: Positions
    """[texts, top_images]: other images."""
    image_scores: HalfFloats
    positive_scores: HalfFloats
    """[texts]: score of a caption with its own image, the best of several; NaN without one."""
    record: Mapping[str, Any]
    """Origin of the lists; see `describe_source`."""

    def check_matches(self, split: Split) -> None:
        """Raise a ValueError unless the lists are of this split, and can be drawn from."""
        if self.record["digest"] != digest(split.image_names, split.captions):
            raise ValueError(
                f"the lists were mined on {self._origin()}, and this is {_describe(split)}: mine "
                "lists on the split that is trained on"
            )
        _check_every_image_has_a_caption(self, split)

    def _origin(self) -> str:
        source = self.record["source"]
        where = " of ".join(str(source[key]) for key in ("split", "dataset") if key in source)
        sizes = _sizes(self.record["num_images"], self.record["num_texts"], self.record["digest"])
        return f"{where} ({sizes})" if where else sizes


def describe_source(
    found: Represented, method: Mapping[str, Any], source: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Make the record of lists.

    `source` may contain anything that identifies the origin, such as the run folder and the digest
    of the model; "dataset" and "split" are quoted if the lists do not fit. It should have no date.
    """
    return {
        "kind": KIND,
        "version": VERSION,
        "num_images": len(found.image_ids),
        "num_texts": len(found.text_ids),
        "digest": digest(found.image_names, found.captions),
        "method": dict(method),
        "source": dict(source or {}),
    }


ARRAYS = ("texts_of_image", "text_scores", "images_of_text", "image_scores", "positive_scores")


def save_lists(path: str | Path, lists: MinedLists) -> None:
    """Write one safetensors file, complete or not at all."""
    tensors = {name: torch.from_numpy(getattr(lists, name)) for name in ARRAYS}
    save_tensors(path, tensors, lists.record)


def load_lists(path: str | Path) -> MinedLists:
    """Map a file into memory; its rows are read on access."""
    path = Path(path)
    check_is_file(path, "a file of mined lists")
    try:
        tensors, record = load_tensors(path)
    except ValueError as error:
        raise ValueError(
            f"{path} is truncated, or not a file of mined lists ({error.__cause__}): mine it again"
        ) from error
    if record.get("kind") != KIND or set(tensors) != set(ARRAYS):
        raise ValueError(f"{path} is a gradspace file, but not one of mined lists")
    if record["version"] != VERSION:
        raise ValueError(
            f"{path} holds mined lists of version {record['version']}, and this gradspace reads "
            f"version {VERSION}: mine them again"
        )
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    return MinedLists(**arrays, record=record)


def _check_every_image_has_a_caption(lists: MinedLists, split: Split) -> None:
    """Raise a ValueError if an image without a caption is listed: a draw needs its captions."""
    num_captions = np.bincount(split.image_of_caption, minlength=len(split.image_names))
    without = np.flatnonzero(num_captions == 0)
    if not len(without):
        return
    listed = without[np.isin(without, lists.images_of_text)]
    if len(listed):
        raise ValueError(
            f"image {listed[0]} ({split.image_names[listed[0]]}) is listed as a negative and has "
            f"no caption to be drawn with it: leave images without captions out of {split.name}, "
            "and mine again"
        )


def _describe(split: Split) -> str:
    sizes = (len(split.image_names), len(split.captions))
    return f"{split.name} ({_sizes(*sizes, digest(split.image_names, split.captions))})"


def _sizes(num_images: int, num_texts: int, digest: str) -> str:
    return f"{counted(num_images, 'image')}, {counted(num_texts, 'caption')}, digest {digest[:6]}"
