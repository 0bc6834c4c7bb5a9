"""What a model is: images and texts in, unit vectors of one space out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gradspace.models.backbones import Backbone
from gradspace.models.pretrained import Pretrained


@dataclass(frozen=True)
class LearnedScale:
    """A model's own way from cosines to logits, scale * cosine + bias, which is trained."""

    scale: Tensor
    bias: Tensor | None = None


class RetrievalModel(nn.Module, ABC):
    """Embeds images and texts into one space; unit vectors, so that scores are cosines.

    Evaluation mode is deterministic, and an embedding depends on nothing else in its batch.
    """

    name: str
    width: int
    """Of the embeddings."""
    reads_passages: ClassVar[bool] = False
    """Are its images texts, as `gradspace.data.passages.PassageTokens` makes them?"""

    @abstractmethod
    def embed_images(self, images: Tensor) -> Tensor:
        """[n, width], from [n, 3, h, w] pixels or [n, (regions,) width] features."""

    @abstractmethod
    def embed_texts(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """[m, width], from int64 [m, words] padded with 0, and how many of them count, [m]."""

    def forward(
        self, images: Tensor, tokens: Tensor, lengths: Tensor, image_of_text: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Both embeddings in one call, as data-parallel training needs it.

        `image_of_text` [m] says which of the images a text describes (by default the one in its
        place); only a model with an `extra_loss` looks at it.
        """
        return self.embed_images(images), self.embed_texts(tokens, lengths)

    def extra_loss(self) -> Tensor | None:
        """Hand over what the latest `forward` in training wants added to the loss, if anything.

        Each loss is handed over once: the model does not keep its graph.
        """
        return None

    def learned_scale(self) -> LearnedScale | None:
        """What takes the place of an objective's temperature, where the model learns one."""
        return None

    def fine_tune_backbone(self, enabled: bool) -> None:
        """Train the image backbone or freeze it, where the model has one.

        Make the optimiser while the backbone is trainable: `parameter_groups` leaves frozen
        parameters out, and optimisers skip parameters that get no gradient.
        """
        for part in self.modules():
            if isinstance(part, Backbone):
                part.fine_tune(enabled)

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Every trainable parameter once, pretrained parts at their own learning rates."""
        parts = [part for part in self.modules() if isinstance(part, Pretrained)]
        part_of = {parameter: part for part in parts for parameter in part.parameters()}
        groups: dict[str, dict[str, Any]] = {}
        for parameter in self.parameters():
            if not parameter.requires_grad:
                continue
            part = part_of.get(parameter)
            name, rate = (part.kind, part.rate) if part else ("new", 1.0)
            group = {"name": name, "params": [], "lr": rate * learning_rate}
            groups.setdefault(name, group)["params"].append(parameter)
        return list(groups.values())


def unit(vectors: Tensor) -> Tensor:
    """Length 1 along the last dimension, in float32 or better."""
    if vectors.dtype in (torch.bfloat16, torch.float16):
        vectors = vectors.float()
    return nn.functional.normalize(vectors, dim=-1)


def xavier_linear(width_in: int, width_out: int) -> nn.Linear:
    """A fully connected layer, Xavier-uniform weights and no bias at first (all three papers)."""
    layer = nn.Linear(width_in, width_out)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
