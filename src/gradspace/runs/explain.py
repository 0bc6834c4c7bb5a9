"""Explanations of a pair's score by words and regions, as far as the model can give them."""

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
    """Parts of a score: words and `rest` add up to it, and so do the regions.

    The `explain` of a model's class says how it divides its score.
    """

    score: float
    words: list[tuple[str, float]]
    """The words of the caption as written, in order, with the contribution of each; pieces of a
    word are added up. Empty if the model cannot tell. Words beyond its limit are left out."""
    rest: float
    """Contribution of the marks of start and end, or the whole score if there are no words."""
    regions: Floats | None
    """[rows, columns] of a grid; [1, regions] if they are not known to be one."""
    attention: Floats | None
    """[words, rows, columns], see `Contributions.attention`; pieces of a word are added up."""
    box: CropBox | None
    """The part of a picture that the model reads and a grid covers, as fractions of its width and
    height; None if the picture was not given."""

    @property
    def says_something(self) -> bool:
        """Whether there are words, or regions with known positions, to show."""
        return bool(self.words) or (self.regions is not None and len(self.regions) > 1)


@torch.no_grad()
def explain_pair(
    system: System,
    image: Tensor | Image.Image,
    caption: str,
    *,
    grid: tuple[int, int] | None = None,
) -> Explanation | None:
    """Divide the score of a pair into words and regions; None if the model cannot tell.

    `image` is a picture, or the model's input for one: pixels [3, height, width] or features. Since
    features do not say whether they are boxes or a grid, the caller does: `grid` has its rows and
    columns. With `gradspace data features --grid`, rows and columns are equal.
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
    """Add up tokens to words, their contributions, and their attention [words, regions]."""
    if found.words is None or spans is None:
        return [], np.zeros(0), None
    word_of_token = spans(caption)
    words = list(dict.fromkeys(span for span in word_of_token if span is not None))
    is_of = np.array([[float(span == word) for span in word_of_token] for word in words])
    is_of = is_of.reshape(len(words), len(word_of_token))
    attention = None if found.attention is None else is_of @ _array(found.attention)
    return [caption[start:end] for start, end in words], is_of @ _array(found.words), attention


def _shape(images: Tensor, num_regions: int, grid: tuple[int, int] | None) -> tuple[int, int]:
    """Return rows and columns; a backbone's cells have the aspect ratio of its pixels."""
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
    """Convert the one pair to float64, so that sums are not rounded."""
    array: Floats = values[0].double().cpu().numpy()
    return array
