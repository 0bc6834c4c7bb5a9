"""The image side of a split as a model reads it: features, pictures or passages as tensors.

`Reading` is the one place that knows how each kind is checked, loaded and turned into a tensor:
batches, evaluation, indexes and queries use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from gradspace.data.captions import Encode
from gradspace.data.dataset import Indices, Split, check_features, gather_features
from gradspace.data.resident import ResidentFeatures

ReadingKind = Literal["features", "pictures", "passages"]
Seeds = Sequence[tuple[int, ...]]
"""Seeds of the random part of preparing each item, such as a random crop."""


class Pixels(Protocol):
    """A function from an RGB picture to the model's input, [3, height, width].

    uint8 if the model normalises, float32 if the function has done so.
    """

    def __call__(self, image: Image.Image, rng: np.random.Generator) -> Tensor: ...


class Reading(Protocol):
    """Turns items of a split into the model's input."""

    kind: ClassVar[ReadingKind]

    def check(self, split: Split) -> None:
        """Raise a ValueError if the split lacks what the model reads."""

    def load(self, split: Split, indices: Indices, seeds: Seeds) -> Tensor:
        """[len(indices), ...]"""


@dataclass(frozen=True)
class FeatureReading:
    """Reads precomputed features unchanged, float32 [n, regions, width] or [n, width]."""

    kind: ClassVar[ReadingKind] = "features"

    def check(self, split: Split) -> None:
        _refuse_passages(split)
        if split.features is None:
            raise ValueError(
                f"split {split.name!r} has no features, and the model reads features: give them as "
                "--features or data.features"
            )

    def load(self, split: Split, indices: Indices, seeds: Seeds) -> Tensor:
        assert split.features is not None
        if isinstance(split.features, ResidentFeatures):
            return split.features.on_device(indices)
        rows = gather_features(split.features, indices)
        with np.errstate(all="ignore"):
            sums: NDArray[np.float32] = rows.sum(tuple(range(1, rows.ndim)))
        check_features(split, indices, np.isfinite(sums))
        return torch.from_numpy(rows)


FEATURES = FeatureReading()


@dataclass(frozen=True)
class PictureReading:
    """Reads pictures as pixels [n, 3, height, width], uint8 or float32."""

    pixels: Pixels
    kind: ClassVar[ReadingKind] = "pictures"

    def check(self, split: Split) -> None:
        _refuse_passages(split)
        if split.images is None:
            raise ValueError(
                f"split {split.name!r} has no images; leave pixels out to use its features"
            )

    def load(self, split: Split, indices: Indices, seeds: Seeds) -> Tensor:
        """Stack with numpy, because torch would start threads for every small copy."""
        assert split.images is not None
        loaded = map(split.images.load, indices.tolist())
        rngs = map(np.random.default_rng, seeds)
        made = [self.pixels(image, rng).numpy() for image, rng in zip(loaded, rngs, strict=True)]
        return torch.from_numpy(np.stack(made))

    def prepare(self, pictures: Sequence[Image.Image]) -> Tensor:
        """Prepare pictures from anywhere for evaluation, [n, 3, height, width]."""
        rng = np.random.default_rng(0)
        return torch.stack([self.pixels(picture, rng) for picture in pictures])


@dataclass(frozen=True)
class PassageReading:
    """Reads passages as one int64 matrix [n, 1 + words]: the length, then tokens padded with 0.

    The length comes first because nothing else says where padding begins: 0 may be a token.
    """

    encode: Encode
    kind: ClassVar[ReadingKind] = "passages"

    def check(self, split: Split) -> None:
        if split.passages is None:
            raise ValueError(f"split {split.name!r} has images, and the model reads passages")

    def load(self, split: Split, indices: Indices, seeds: Seeds) -> Tensor:
        assert split.passages is not None
        return self.prepare([split.passages[index] for index in indices.tolist()])

    def prepare(self, passages: Sequence[str]) -> Tensor:
        tokens, lengths = self.encode(passages)
        return torch.cat([lengths[:, None], tokens], 1)


def _refuse_passages(split: Split) -> None:
    if split.passages is not None:
        raise ValueError(
            f"split {split.name!r} has passages, and the model reads images: use model text-dual"
        )
