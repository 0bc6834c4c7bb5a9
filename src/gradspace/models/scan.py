"""SCAN: stacked cross attention between the regions of an image and the words of a text."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gradspace.models.cross_attention import (
    CrossAttention,
    Direction,
    clipped_attention,
    mean_relevance,
    share_out_mean,
)
from gradspace.models.encoders import Encoders
from gradspace.models.inputs import ImageInput, TextInput
from gradspace.models.registry import STEP_DECAY, Share, model
from gradspace.parameters import Positive

ATTENTION = {"text-to-image": 9.0, "image-to-text": 4.0}
POOLING = {"text-to-image": 6.0, "image-to-text": 5.0}


@model(
    "scan",
    source="Lee et al. 2018",
    training={**STEP_DECAY, "epochs": 30, "optimizer": "adam", "learning_rate": 2e-4},
)
class SCAN(CrossAttention):
    """Every word attends to the regions, or every region to the words; pairs are scored.

    With s the cosine of a region and a word, attention = softmax(attention_scale * [s]+ / |[s]+|),
    with lengths over the attending parts (eq. 2, 7). The relevance R is the cosine of a part and
    what it attends to. The score is the mean of R over the attending parts ("avg"), or
    log(sum of exp(pooling_scale * R)) / pooling_scale ("lse", eq. 5).

    The default scales are those published for the direction: 9 and 6 for text-to-image, 4 and 5 for
    image-to-text (20 instead of 5 for MS-COCO). The published training for MS-COCO has learning
    rate 5e-4, 20 epochs, decay after 10.

    The equations clip negative similarities; the published code, and so the default here,
    multiplies them by `leak` = 0.1. The published code adds 1e-8 to lengths; here a length of zero
    gives zero.

    Relations: the published ensembles are `gradspace evaluate` of two runs, one per direction.
    """

    def __init__(
        self,
        image_input: ImageInput,
        text_input: TextInput,
        *,
        direction: Direction = "text-to-image",
        pooling: Literal["lse", "avg"] = "lse",
        attention_scale: Positive | None = None,
        pooling_scale: Positive | None = None,
        leak: Share = 0.1,
        encoders: Encoders = Encoders(),
    ) -> None:
        super().__init__(image_input, text_input, encoders)
        self.directions = (direction,)
        self.pooling = pooling
        self.attention_scale = attention_scale or ATTENTION[direction]
        self.pooling_scale = pooling_scale or POOLING[direction]
        self.leak = leak

    def weights(self, similarities: Tensor, present: Tensor | None) -> Tensor:
        return clipped_attention(similarities, present, scale=self.attention_scale, leak=self.leak)

    def pool(self, relevance: Tensor, present: Tensor | None) -> Tensor:
        if self.pooling == "avg":
            return mean_relevance(relevance, present)
        return self._scaled(relevance, present).logsumexp(1) / self.pooling_scale

    def share_out(self, cosines: Tensor, weights: Tensor, present: Tensor | None) -> Tensor:
        """Share out the pooled score; for "lse", by the softmax of pooling_scale * R over parts.

        What a part then gets beyond its softmax times R is shared out by its attention weights.
        """
        if self.pooling == "avg":
            return share_out_mean(cosines, present)
        relevance = cosines.sum(3)
        shares = self._scaled(relevance, present).softmax(1)
        beyond = self.pool(relevance, present)[:, None] - relevance
        return shares[..., None] * (cosines + beyond[..., None] * weights)

    def _scaled(self, relevance: Tensor, present: Tensor | None) -> Tensor:
        scaled = self.pooling_scale * relevance
        return scaled if present is None else scaled.masked_fill(~present, -torch.inf)
