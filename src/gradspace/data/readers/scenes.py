"""The built-in dataset `scenes`: captions and regions are cached, pictures drawn when needed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gradspace.data.cache import cache_folder, made_once
from gradspace.data.dataset import Dataset, Split, make_split
from gradspace.data.feature_files import FeatureFile, write_header
from gradspace.data.json_files import read_json
from gradspace.data.readers.registry import reader
from gradspace.data.scenes import Scenes, relevance
from gradspace.files import write_atomically


@dataclass(frozen=True)
class SceneImages:
    """Pictures of scenes, drawn when they are loaded; those drawn last are kept."""

    scenes: Scenes

    def __len__(self) -> int:
        return len(self.scenes)

    def load(self, index: int) -> Image.Image:
        return _drawn(self.scenes, index).copy()


@lru_cache(maxsize=1000)  # 50 MB of the default size
def _drawn(scenes: Scenes, index: int) -> Image.Image:
    return scenes.image(index)


@reader("scenes")
def open_scenes(
    *,
    num_train: int = 2000,
    num_dev: int = 500,
    num_test: int = 1000,
    seed: int = 0,
    image_size: int = 128,
    num_regions: int = 12,
    dimension: int = 128,
    noise: float = 0.15,
) -> Dataset:
    """Procedural pictures of toys with five captions each, and detector regions as features."""
    sizes = {"train": num_train, "dev": num_dev, "test": num_test}
    for split, size in sizes.items():
        if size < 1:
            raise ValueError(f"num_{split} is {size}; use 1 or more")
    splits = {
        split: _open_split(
            Scenes(
                split=split,
                num_images=size,
                seed=seed,
                image_size=image_size,
                num_regions=num_regions,
                dimension=dimension,
                noise=noise,
            )
        )
        for split, size in sizes.items()
    }
    return Dataset("scenes", splits)


def true_relevance(split: Split) -> NDArray[np.bool_]:
    """Compute the truth [captions, images]: which images of a `scenes` split each caption fits."""
    if not isinstance(split.images, SceneImages):
        raise ValueError("only splits of the built-in dataset scenes know their true relevance")
    scenes = split.images.scenes
    captions = [caption for index in range(len(scenes)) for caption in scenes.captions(index)]
    return relevance(captions, [scenes.scene(index) for index in range(len(scenes))])


def _open_split(scenes: Scenes) -> Split:
    folder = made_once(cache_folder() / scenes.fingerprint, partial(_make, scenes))
    texts = read_json(folder / "captions.json", list[list[str]], "the captions of scenes")
    described = [(f"{scenes.split}-{index:06d}", of_image) for index, of_image in enumerate(texts)]
    features = FeatureFile(folder / "regions.npy")
    return make_split(scenes.split, described, SceneImages(scenes), features)


def _make(scenes: Scenes, folder: Path) -> None:
    """Write one image at a time, so that any number of scenes fits in memory."""
    texts = [[caption.text for caption in scenes.captions(i)] for i in range(len(scenes))]
    with write_atomically(folder / "captions.json") as file:
        json.dump(texts, file)
    with write_atomically(folder / "regions.npy", "wb") as file:
        shape = (len(scenes), scenes.num_regions, scenes.dimension)
        write_header(file, shape, "float32")
        for index in range(len(scenes)):
            file.write(scenes.regions(index))
