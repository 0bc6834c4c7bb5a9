"""Conversion of pictures to tensors; all randomness comes from the generator passed in.

Pixels stay bytes until they reach the model's device, so that a quarter of the data travels from
worker to process, and from there to the GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

CropBox = tuple[float, float, float, float]
"""Left, top, right, bottom."""


@dataclass(frozen=True, kw_only=True)
class RandomCrop:
    """Training crop: a random part of the picture, resized to a square, flipped half of the time.

    The part's share of the area is drawn from `scale`, its ratio of width to height from `ratio` on
    a logarithmic scale; after ten draws that do not fit, the middle of the picture is taken. This
    is torchvision's RandomResizedCrop, which VSE++ uses.
    """

    size: int = 224
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    resample: Image.Resampling = Image.Resampling.BILINEAR

    def __call__(self, image: Image.Image, rng: np.random.Generator) -> Tensor:
        left, top, width, height = self._part(image.width, image.height, rng)
        part = image.crop((left, top, left + width, top + height))
        part = part.resize((self.size, self.size), self.resample)
        return _bytes_of(_flipped(part, rng))

    def _part(self, width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
        """Draw the part's left, top, width and height."""
        narrow, wide = self.ratio
        for _ in range(10):
            area = width * height * rng.uniform(*self.scale)
            ratio = math.exp(rng.uniform(math.log(narrow), math.log(wide)))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                return int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1)), w, h
        w, h = min(width, round(height * wide)), min(height, round(width / narrow))
        return (width - w) // 2, (height - h) // 2, w, h


@dataclass(frozen=True, kw_only=True)
class CentreCrop:
    """Evaluation crop: the short side is resized to `resize`, then the middle `size` is cut out."""

    size: int = 224
    resize: int = 256
    resample: Image.Resampling = Image.Resampling.BILINEAR

    def __post_init__(self) -> None:
        if self.resize < self.size:
            raise ValueError(f"resize is {self.resize}; use the size, {self.size}, or more")

    def __call__(self, image: Image.Image, rng: np.random.Generator | None = None) -> Tensor:
        size, middle = self._geometry(image.size)
        cut = image.resize(size, self.resample).crop(middle)
        return _bytes_of(cut)

    def box(self, size: tuple[int, int]) -> CropBox:
        """Part of a picture of this width and height that is kept, in shares of these."""
        (width, height), (left, top, right, bottom) = self._geometry(size)
        return left / width, top / height, right / width, bottom / height

    def _geometry(self, size: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int, int, int]]:
        """Width and height after resizing, and the middle box: left, top, right, bottom."""
        width, height = (self.resize * side // min(size) for side in size)
        left, top = round((width - self.size) / 2), round((height - self.size) / 2)
        return (width, height), (left, top, left + self.size, top + self.size)


@dataclass(frozen=True, kw_only=True)
class WholePicture:
    """Evaluation without a crop: the whole picture squeezed into a square, as VSE-infinity's."""

    size: int = 224
    resample: Image.Resampling = Image.Resampling.BILINEAR

    def __call__(self, image: Image.Image, rng: np.random.Generator | None = None) -> Tensor:
        return _bytes_of(image.resize((self.size, self.size), self.resample))

    def box(self, size: tuple[int, int]) -> CropBox:
        """Part of a picture that is kept: all of it."""
        return 0.0, 0.0, 1.0, 1.0


@dataclass(frozen=True, kw_only=True)
class RandomPart:
    """Training crop: a part with the picture's aspect ratio, squeezed into a square, maybe flipped.

    The part's sides are a common share of the picture's, drawn from `share`.
    """

    size: int = 224
    share: tuple[float, float] = (0.6, 1.0)
    resample: Image.Resampling = Image.Resampling.BILINEAR

    def __call__(self, image: Image.Image, rng: np.random.Generator) -> Tensor:
        share = rng.uniform(*self.share)
        width, height = (max(1, int(side * share)) for side in image.size)
        left = int(rng.integers(image.width - width + 1))
        top = int(rng.integers(image.height - height + 1))
        part = image.crop((left, top, left + width, top + height))
        part = part.resize((self.size, self.size), self.resample)
        return _bytes_of(_flipped(part, rng))


def _flipped(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Flip a picture left to right half of the time."""
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else image


def _bytes_of(image: Image.Image) -> Tensor:
    """Convert a picture to uint8 [3, height, width]."""
    return torch.from_numpy(np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1)))
