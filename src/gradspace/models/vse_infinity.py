"""VSE-infinity: learned pooling (GPO) of image regions or grid cells and of words."""

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
from gradspace.models.size_augmentation import WordTouch, keep_some, region_rates, touch_words
from gradspace.models.text import GRUEncoder
from gradspace.parameters import Flag

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
    words_and_features={"weight_decay": 1e-2},  # the optimiser's default, as in the published code
)
class VSEInfinity(RetrievalModel):
    """Generalized pooling of regions or grid cells, and of the words of a bi-GRU or BERT.

    Regions go through an FC layer plus a two-layer MLP (BatchNorm inside, half the width), whose
    outputs are added, then GPO. Grids from a backbone go through an FC layer and GPO. Words go
    through a bi-directional GRU with averaged directions, or BERT with a linear layer, then GPO.
    The published training has BERT at 0.1 and the backbone at 0.01 of the learning rate, and keeps
    the backbone's BatchNorm statistics.

    Size augmentation follows the published code and is used in training only. Regions of a detector
    are dropped with probability `drop`, cells of a grid with about half of that. A share `drop` of
    the words is changed: half of these are masked, a tenth replaced by a random one, the rest
    deleted. For BERT a word includes all its pieces, and start and end marks are kept; for a GRU
    the marks count as words. `vary` instead draws the share of every sample between 0 and twice
    `drop`, so that training also sees the full number of regions, as evaluation does.
    """

    masks_words = True
    continues: Tensor | None
    """Mask of the tokens that continue the word before them, bool [tokens]."""

    def __init__(
        self,
        image_input: ImageInput,
        text_input: TextInput,
        *,
        drop: DropRate = 0.2,
        vary: Flag = False,
        encoders: Encoders = Encoders(),
    ) -> None:
        super().__init__()
        width = self.width = encoders.width
        self.drop, self.vary = drop, vary
        self.grid = image_input.is_grid
        self.images = encoders.images(image_input, self.name, regions=True)
        self.project = xavier_linear(self.images.width, width)
        self.refine = _mlp(self.images.width, width) if not self.grid else None
        self.pool_images = GPO()
        self.texts = encoders.texts(text_input, bidirectional=True)
        self.pool_texts = GPO()
        is_gru = isinstance(self.texts, GRUEncoder)
        self.touch = WordTouch(
            rate=drop,
            num_tokens=self.texts.vocabulary_size,
            mask=text_input.mask,
            keep_ends=not is_gru,
            vary=vary,
        )
        continues = None if is_gru else _marked(text_input.pieces, self.texts.vocabulary_size)
        self.register_buffer("continues", continues, persistent=False)

    def embed_images(self, images: Tensor) -> Tensor:
        return unit(self.pool_images(*self._regions(images)))

    def embed_texts(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        return unit(self.pool_texts(*self._words(tokens, lengths)))

    def explain(self, images: Tensor, tokens: Tensor, lengths: Tensor) -> Contributions | None:
        """Decompose scores: GPO is, given the order of values, a sum over regions or over words."""
        return cosine_contributions(
            self.pool_images.summands(*self._regions(images)),
            self.pool_texts.summands(*self._words(tokens, lengths)),
        )

    def _regions(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Compute regions, [n, regions, width], and the mask of those to pool, [n, regions]."""
        features = self.images(images)
        regions = self.project(features)
        if self.refine is not None:
            regions = regions + self.refine(features.flatten(0, 1)).view_as(regions)
        mask = torch.ones(regions.shape[:2], dtype=torch.bool, device=regions.device)
        if self.training:
            rates = region_rates(len(mask), self.drop, grid=self.grid, vary=self.vary)
            mask = keep_some(mask, rates)
        return regions, mask

    def _words(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        lengths = lengths.cpu()
        if self.training:
            tokens, lengths = touch_words(tokens, lengths, self.touch, self.continues)
        words = self.texts(tokens, lengths)
        mask = length_mask(lengths, tokens.shape[1])
        return words, mask.to(tokens.device, non_blocking=True)


def _mlp(width_in: int, width: int) -> nn.Sequential:
    hidden = max(1, width // 2)
    return nn.Sequential(
        nn.Linear(width_in, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, width)
    )


def _marked(tokens: tuple[int, ...], num_tokens: int) -> Tensor:
    """Build a mask, bool [num_tokens], that is True at these tokens."""
    return torch.zeros(num_tokens, dtype=torch.bool).index_fill(
        0, torch.tensor(tokens).long(), True
    )
