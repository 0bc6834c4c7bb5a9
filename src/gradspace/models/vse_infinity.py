"""VSE-infinity: learnt pooling (GPO) of image regions or grid cells and of words."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from gradspace.models.contract import (
    Contributions,
    RetrievalModel,
    cosine_contributions,
    unit,
    xavier_linear,
)
from gradspace.models.encoders import Encoders
from gradspace.models.inputs import ImageInput, TextInput
from gradspace.models.pooling import GPO, length_mask
from gradspace.models.registry import STEP_DECAY, model

DropRate = Annotated[float, Field(strict=True, ge=0, le=0.5)]


@model(
    "vse-infinity",
    source="Chen et al. 2021",
    warm_up="triplet",
    training={
        **STEP_DECAY,
        "epochs": 25,
        "optimizer": "adamw",
        "learning_rate": 5e-4,
        "weight_decay": 1e-4,
    },
)
class VSEInfinity(RetrievalModel):
    """Generalized pooling of regions or grid cells, and of the words of a bi-GRU or BERT.

    Regions: FC plus a two-layer MLP (BatchNorm inside, half the width), summed, GPO, unit length.
    Grids from a backbone: FC and GPO. Words: a bi-directional GRU, directions averaged, or BERT
    with a linear layer, then GPO. Published with BERT at 0.1 and the backbone at 0.01 of the
    learning rate, BatchNorm statistics of the backbone kept.

    Size augmentation: in training, regions and words (but the first and last token) are dropped at
    random, a share `drop` of them on average; evaluation uses all. The published code drops every
    region with probability 0.2, so that all 36 are hardly ever seen together before the test (for
    grids its rate varies); here the rate is drawn for every sample, between 0 and 2 * drop.
    """

    def __init__(
        self,
        image_input: ImageInput,
        text_input: TextInput,
        *,
        drop: DropRate = 0.2,
        encoders: Encoders = Encoders(),
    ) -> None:
        super().__init__()
        width = self.width = encoders.width
        self.drop = drop
        self.images = encoders.images(image_input, self.name, regions=True)
        self.project = xavier_linear(self.images.width, width)
        self.refine = _mlp(self.images.width, width) if image_input.shape else None
        self.pool_images = GPO()
        self.texts = encoders.texts(text_input, bidirectional=True)
        self.pool_texts = GPO()

    def embed_images(self, images: Tensor) -> Tensor:
        return unit(self.pool_images(*self._regions(images)))

    def embed_texts(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        return unit(self.pool_texts(*self._words(tokens, lengths)))

    def explain(self, images: Tensor, tokens: Tensor, lengths: Tensor) -> Contributions | None:
        """Given the order of the values, GPO is a sum over the regions, and over the words."""
        return cosine_contributions(
            self.pool_images.summands(*self._regions(images)),
            self.pool_texts.summands(*self._words(tokens, lengths)),
        )

    def _regions(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """What is pooled, [n, regions, width], and which of it, [n, regions]."""
        features = self.images(images)
        regions = self.project(features)
        if self.refine is not None:
            regions = regions + self.refine(features.flatten(0, 1)).view_as(regions)
        mask = torch.ones(regions.shape[:2], dtype=torch.bool, device=regions.device)
        if self.training:
            mask = keep_some(mask, self.drop)
        return regions, mask

    def _words(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        lengths = lengths.cpu()
        if self.training:
            tokens, lengths = drop_words(tokens, lengths, self.drop)
        words = self.texts(tokens, lengths)
        mask = length_mask(lengths, tokens.shape[1])
        return words, mask.to(tokens.device, non_blocking=True)


def _mlp(width_in: int, width: int) -> nn.Sequential:
    hidden = max(1, width // 2)
    return nn.Sequential(
        nn.Linear(width_in, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, width)
    )


def keep_some(mask: Tensor, drop: float) -> Tensor:
    """Drop places of a mask [n, k] at a rate drawn for each row from 0 to 2 * drop; never all."""
    rates = 2 * drop * torch.rand(len(mask), 1, device=mask.device)
    kept = mask & (torch.rand(mask.shape, device=mask.device) >= rates)
    return kept | (mask & ~kept.any(1, keepdim=True))


def drop_words(tokens: Tensor, lengths: Tensor, drop: float) -> tuple[Tensor, Tensor]:
    """Drop words at random, moving the others together; the first and last token stay.

    It is drawn where the lengths are, on the CPU, where a GRU wants them: nothing waits for a GPU.
    """
    places = torch.arange(tokens.shape[1])
    ends = (places == 0) | (places == lengths[:, None] - 1)
    kept = keep_some(length_mask(lengths, tokens.shape[1]), drop) | ends
    order = kept.logical_not().int().argsort(dim=1, stable=True)
    lengths = kept.sum(1)
    padding = ~length_mask(lengths, tokens.shape[1])
    order, padding = (x.to(tokens.device, non_blocking=True) for x in (order, padding))
    return tokens.gather(1, order).masked_fill(padding, 0), lengths
