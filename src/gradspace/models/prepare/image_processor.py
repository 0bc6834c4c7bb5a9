"""Image processor of a transformers network: pictures to the pixels it was trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from gradspace.models.hub import download_options
from gradspace.models.pretrained import one_sentence, place_of, quietly


class ImageProcessor:
    """Converts pictures to pixels [3, height, width], as the folder's configuration says.

    SigLIP 2 with native aspect ratios (NaFlex) reads patches instead: see `with_shape`.
    """

    def __init__(self, name: str | Path) -> None:
        from transformers import AutoImageProcessor

        place = place_of(name)
        _check_described(Path(place))
        with quietly(), one_sentence(name):
            self._processor: Any = AutoImageProcessor.from_pretrained(
                place, **download_options(place)
            )
        self.shape = tuple(self(Image.new("RGB", (64, 48))).shape)
        """Shape that every picture is converted to."""
        if self.shape != tuple(self(Image.new("RGB", (48, 64))).shape):
            raise ValueError(
                f"{name} keeps the aspect ratio of pictures, so that they do not fit into one "
                "batch: add a crop_size to its preprocessor_config.json"
            )

    def __call__(self, image: Image.Image, rng: np.random.Generator | None = None) -> Tensor:
        made = self._processor(image, return_tensors="pt")
        pixels: Tensor = made["pixel_values"][0]
        if "spatial_shapes" in made:
            return with_shape(pixels, made["spatial_shapes"][0])
        return pixels

    def save(self, folder: Path) -> None:
        """Save the file that `ImageProcessor(folder)` reads, next to the network's own."""
        self._processor.save_pretrained(folder)


def _check_described(folder: Path) -> None:
    names = ("preprocessor_config.json", "processor_config.json")
    if folder.is_dir() and not any((folder / name).is_file() for name in names):
        raise ValueError(
            f"{folder} has no {names[0]}, which defines the size and normalisation of the "
            "network's pixels: add the file"
        )


def with_shape(patches: Tensor, shape: Tensor) -> Tensor:
    """Prepend a row with the numbers of patches in height and width to patches [most, values]."""
    first = patches.new_zeros(1, patches.shape[1])
    first[0, :2] = shape
    return torch.cat([first, patches])


def without_shape(images: Tensor) -> tuple[Tensor, Tensor]:
    """Split off the first row: patches [n, most, values], and numbers of patches, int64 [n, 2]."""
    return images[:, 1:], images[:, 0, :2].long()
