"""What a dataset is, whatever its layout on disk: splits of images with their captions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image


class Images(Protocol):
    """Pictures by index; safe to use from several worker processes."""

    def __len__(self) -> int: ...

    def load(self, index: int) -> Image.Image:
        """RGB; a ValueError that names the file where it is missing or broken."""


class Features(Protocol):
    """Precomputed features by index: `shape` is that of one image, [regions, width] or [width]."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def load(self, index: int) -> NDArray[np.float32]: ...


@dataclass(frozen=True)
class Split:
    """Images, their captions, and which caption belongs to which image."""

    name: str
    image_names: Sequence[str]
    captions: Sequence[str]
    image_of_caption: NDArray[np.int64]
    """[captions]: the index of the image that a caption describes."""
    images: Images | None = None
    features: Features | None = None


@dataclass(frozen=True)
class Dataset:
    """The splits of one dataset, "train", "dev" and "test" where it has them."""

    name: str
    splits: Mapping[str, Split]
