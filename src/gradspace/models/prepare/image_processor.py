"""The image processor of a transformers network: pictures to the pixels it was trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from gradspace.models.pretrained import one_sentence, place_of, quietly


class ImageProcessor:
    """Pictures to pixels [3, height, width], resized, cut and normalised as the folder says.

    SigLIP 2 with its own ratio of sides (NaFlex) reads patches instead: see `with_shape`.
    """

    def __init__(self, name: str | Path) -> None:
        from transformers import AutoImageProcessor

        place = place_of(name)
        _check_described(Path(place))
        with quietly(), one_sentence(name):
            self._processor: Any = AutoImageProcessor.from_pretrained(
                place, trust_remote_code=False
            )
        self.shape = tuple(self(Image.new("RGB", (64, 48))).shape)
        """Of what one picture becomes."""
        if self.shape != tuple(self(Image.new("RGB", (48, 64))).shape):
            raise ValueError(
                f"{name} keeps the ratio of a picture's sides, so that pictures do not fit into "
                "one batch: its preprocessor_config.json should have a crop_size"
            )

    def __call__(self, image: Image.Image, rng: np.random.Generator | None = None) -> Tensor:
        made = self._processor(image, return_tensors="pt")
        pixels: Tensor = made["pixel_values"][0]
        if "spatial_shapes" in made:
            return with_shape(pixels, made["spatial_shapes"][0])
        return pixels

    def save(self, folder: Path) -> None:
        """Write the file that `ImageProcessor(folder)` reads, beside the network's own."""
        self._processor.save_pretrained(folder)


def _check_described(folder: Path) -> None:
    names = ("preprocessor_config.json", "processor_config.json")
    if folder.is_dir() and not any((folder / name).is_file() for name in names):
        raise ValueError(
            f"{folder} has no {names[0]}: it says how large and how normalised the network wants "
            "its pixels"
        )


def with_shape(patches: Tensor, shape: Tensor) -> Tensor:
    """One tensor of patches [most, values] and how many there are in height and width, above."""
    first = patches.new_zeros(1, patches.shape[1])
    first[0, :2] = shape
    return torch.cat([first, patches])


def without_shape(images: Tensor) -> tuple[Tensor, Tensor]:
    """Patches [n, most, values] and their numbers in height and width, int64 [n, 2]."""
    return images[:, 1:], images[:, 0, :2].long()
