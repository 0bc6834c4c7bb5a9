"""Why a caption and an image belong together, as far as the model can tell: words and regions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from gradspace.data.captions import Spans
from gradspace.data.inputs import PictureReading
from gradspace.models.contract import Contributions
from gradspace.models.prepare.pictures import CentreCrop, CropBox, WholePicture
from gradspace.runs.embed import read_pictures
from gradspace.runs.system import System
from gradspace.scores.evaluating import evaluating

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Explanation:
    """What a score is made of: words and `rest` add up to it, and so do the regions.

    How a model shares its score out is said by the `explain` of its class.
    """

    score: float
    words: list[tuple[str, float]]
    """As they are written in the caption, in order, and what each adds; pieces of a word are added
    up. Empty where the model cannot tell. What is beyond its longest caption is not there."""
    rest: float
    """Of no word: the marks of start and end, or all of the score where there are no words."""
    regions: Floats | None
    """[rows, columns] of a grid; [1, regions] where they are not known to be one."""
    attention: Floats | None
    """[words, rows, columns], see `Contributions.attention`; pieces of a word are added up."""
    box: CropBox | None
    """The part of a picture that the model reads, which a grid covers, as shares of its width and
    height; None where the picture was not given."""

    @property
    def says_something(self) -> bool:
        """Whether there are words, or regions whose places are known, to be shown."""
        return bool(self.words) or (self.regions is not None and len(self.regions) > 1)


@torch.no_grad()
def explain_pair(
    system: System,
    image: Tensor | Image.Image,
    caption: str,
    *,
    grid: tuple[int, int] | None = None,
) -> Explanation | None:
    """Which words and which regions the score of a pair is made of; None: the model cannot tell.

    `image` is a picture, or what the model reads of one: pixels [3, height, width] or features.
    Features do not say whether they are boxes or a grid, so that the caller does: `grid` has its
    rows and columns. Those of `gradspace data features --grid` are the same number.
    """
    images = image[None] if isinstance(image, Tensor) else read_pictures(system, [image])
    found = _contributions(system, images, caption)
    if found is None:
        return None
    score = float(found.scores[0])
    words, added, attention = _of_words(found, system.spans, caption)
    regions = None if found.regions is None else _array(found.regions)
    shape = (1, 0) if regions is None else _shape(images, len(regions), grid)
    return Explanation(
        score=score,
        words=list(zip(words, added.tolist(), strict=True)),
        rest=score - float(added.sum()),
        regions=None if regions is None else regions.reshape(shape),
        attention=None if attention is None else attention.reshape(len(words), *shape),
        box=_box(system, image),
    )


def _contributions(system: System, images: Tensor, caption: str) -> Contributions | None:
    tokens, lengths = system.encode([caption])
    with evaluating(system.model):
        device = system.device
        return system.model.explain(images.to(device), tokens.to(device), lengths)


def _of_words(
    found: Contributions, spans: Spans | None, caption: str
) -> tuple[list[str], Floats, Floats | None]:
    """The words, what each adds, and its attention [words, regions], from those of the tokens."""
    if found.words is None or spans is None:
        return [], np.zeros(0), None
    word_of_token = spans(caption)
    words = list(dict.fromkeys(span for span in word_of_token if span is not None))
    is_of = np.array([[float(span == word) for span in word_of_token] for word in words])
    is_of = is_of.reshape(len(words), len(word_of_token))
    attention = None if found.attention is None else is_of @ _array(found.attention)
    return [caption[start:end] for start, end in words], is_of @ _array(found.words), attention


def _shape(images: Tensor, num_regions: int, grid: tuple[int, int] | None) -> tuple[int, int]:
    """Rows and columns; the cells of a backbone are as many as fit the ratio of its pixels."""
    if grid is not None:
        if grid[0] * grid[1] != num_regions:
            raise ValueError(
                f"grid is {grid[0]} rows of {grid[1]}, and the image has {num_regions} regions"
            )
        return grid
    if images.dim() == 4:
        height, width = images.shape[2:]
        rows = round((num_regions * height / width) ** 0.5)
        if rows * rows * width == num_regions * height:
            return rows, num_regions // rows
    return 1, num_regions


def _box(system: System, image: Tensor | Image.Image) -> CropBox | None:
    reading = system.reading
    if isinstance(image, Tensor) or not isinstance(reading, PictureReading):
        return None
    pixels = reading.pixels
    return pixels.box(image.size) if isinstance(pixels, CentreCrop | WholePicture) else None


def _array(values: Tensor) -> Floats:
    """Of the one pair, in float64, so that sums of them are as exact as they are."""
    array: Floats = values[0].double().cpu().numpy()
    return array
