"""The built-in dataset `scenes`: every item is a pure function of seed, split and index."""

from dataclasses import dataclass, fields
from operator import index as as_index

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gradspace.data.scenes.captions import write_captions
from gradspace.data.scenes.regions import region_features
from gradspace.data.scenes.render import render
from gradspace.data.scenes.sample import sample_scene
from gradspace.data.scenes.truth import Caption
from gradspace.data.scenes.world import Scene

VERSION = 1
"""Raise this with every change that alters scenes, images, captions or regions."""

SPLITS = ("train", "dev", "test")
_SCENE, _IMAGE, _CAPTIONS, _REGIONS = range(4)


@dataclass(frozen=True, kw_only=True)
class Scenes:
    """Procedural pictures of toys with five captions each, whose truth is known exactly.

    Items are made on request, in any order and process, and the first items of a larger dataset are
    those of a smaller one. `noise` is how unreliable the region features are: 0 is a perfect
    detector.

    Examples:
        >>> scenes = Scenes(split="dev", num_images=100)
        >>> scenes.image(7).size, len(scenes.captions(7)), scenes.regions(7).shape
        ((128, 128), 5, (12, 128))
    """

    split: str = "train"
    num_images: int = 2000
    seed: int = 0
    image_size: int = 128
    num_regions: int = 12
    dimension: int = 128
    noise: float = 0.15

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise ValueError(f"split is {self.split!r}; use one of {', '.join(SPLITS)}")
        smallest = {"num_images": 1, "seed": 0, "image_size": 128, "num_regions": 1, "dimension": 1}
        for name, least in smallest.items():
            value = getattr(self, name)
            if value < least:
                raise ValueError(f"{name} is {value}; use {least} or more")
        if not 0 <= self.noise <= 1:
            raise ValueError(f"noise is {self.noise}; use a number from 0 to 1")

    def __len__(self) -> int:
        return self.num_images

    def scene(self, index: int) -> Scene:
        """Draw the contents and layout of picture `index`."""
        return sample_scene(self._rng(index, _SCENE))

    def image(self, index: int) -> Image.Image:
        """Render an RGB picture, `image_size` pixels wide and high."""
        return render(self.scene(index), self.image_size, self._rng(index, _IMAGE))

    def captions(self, index: int) -> tuple[Caption, ...]:
        """Write five different captions, all true of `scene(index)`."""
        return write_captions(self.scene(index), self._rng(index, _CAPTIONS))

    def regions(self, index: int) -> NDArray[np.float32]:
        """Compute detector features, float32 [num_regions, dimension]."""
        rng = self._rng(index, _REGIONS)
        return region_features(self.scene(index), self.num_regions, self.dimension, self.noise, rng)

    @property
    def fingerprint(self) -> str:
        """Key for caches on disk, which differs whenever items may differ."""
        values = (f"{field.name}={getattr(self, field.name)}" for field in fields(self))
        return f"scenes-v{VERSION}-{'-'.join(values)}"

    def _rng(self, index: int, stream: int) -> np.random.Generator:
        if not 0 <= as_index(index) < self.num_images:
            raise IndexError(f"index is {index}; use 0 to {self.num_images - 1}")
        return np.random.default_rng([self.seed, SPLITS.index(self.split), index, stream])
