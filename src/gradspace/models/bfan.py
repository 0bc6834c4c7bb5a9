"""BFAN: cross attention in both directions, restricted to relevant parts."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from gradspace.models.cross_attention import (
    CrossAttention,
    clipped_attention,
    mean_relevance,
    share_out_mean,
)
from gradspace.models.encoders import Encoders
from gradspace.models.inputs import ImageInput, TextInput
from gradspace.models.registry import STEP_DECAY, Share, model
from gradspace.parameters import Positive

TIE = 1e-5
"""Relative difference up to which weights count as equal, to allow for rounding."""


@model(
    "bfan",
    source="Liu et al. 2019",
    training={**STEP_DECAY, "epochs": 15, "optimizer": "adam", "learning_rate": 2e-4},
)
class BFAN(CrossAttention):
    """Words attend to the relevant regions and regions to the relevant words; pairs are scored.

    Attention is as in SCAN, with softmax scale 20. Then part i of a context is kept if it gets more
    attention than the others, F_i = sum over t of (w_i - w_t) g_t > 0, and the weights of the kept
    parts are divided by their sum. The confidence g_t of a part is 1 ("equal") or sqrt(w_t)
    ("prob"). The score is the mean relevance of the words plus that of the regions, in [-2, 2].

    F_i > 0 means w_i > sum of w_t g_t / sum of g_t, one threshold per attending part. If all parts
    have the same weight, or there is only one, no F_i is positive, and the published code divides
    zero by zero; here all of them are kept. The choice of parts is a constant of the step.

    `leak` and lengths of zero are treated as in SCAN. The published training for MS-COCO has
    learning rate 5e-4 and 20 epochs; the decay after epoch 15 does not take effect in 15.
    """

    directions = ("text-to-image", "image-to-text")

    def __init__(
        self,
        image_input: ImageInput,
        text_input: TextInput,
        *,
        confidence: Literal["equal", "prob"] = "equal",
        attention_scale: Positive = 20.0,
        leak: Share = 0.1,
        encoders: Encoders = Encoders(),
    ) -> None:
        super().__init__(image_input, text_input, encoders)
        self.confidence = confidence
        self.attention_scale = attention_scale
        self.leak = leak

    def weights(self, similarities: Tensor, present: Tensor | None) -> Tensor:
        first = clipped_attention(similarities, present, scale=self.attention_scale, leak=self.leak)
        kept = first.where(self._focus(first.detach(), present), 0)
        return kept / kept.sum(3, keepdim=True)

    def pool(self, relevance: Tensor, present: Tensor | None) -> Tensor:
        return mean_relevance(relevance, present)

    def share_out(self, cosines: Tensor, weights: Tensor, present: Tensor | None) -> Tensor:
        return share_out_mean(cosines, present)

    def _focus(self, weights: Tensor, present: Tensor | None) -> Tensor:
        """Mask of the parts of a context that are kept; absent parts have weight 0."""
        if self.confidence == "prob":
            confidences = weights.sqrt()
            threshold = (weights * confidences).sum(3) / confidences.sum(3)
        elif present is None:
            threshold = weights.mean(3)
        else:
            threshold = weights.sum(3) / present.sum(1)
        focus = weights > (1 + TIE) * threshold[..., None]
        return focus | ~focus.any(3, keepdim=True)
