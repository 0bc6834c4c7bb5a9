"""Contract of a model: images and texts in, unit vectors of one space or scores of pairs out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gradspace.models.backbones import Backbone
from gradspace.models.pretrained import Pretrained

PAIRS_AT_ONCE = 256
"""Number of pairs scored at a time by the default `score`, which goes pair by pair."""


@dataclass(frozen=True)
class LearnedScale:
    """A model's learned map from cosines to logits, scale * cosine + bias."""

    scale: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Contributions:
    """Decomposition of the scores of n pairs: what every word and every region adds to them.

    The contributions of a pair's words add up to its score, and so do those of its regions. None
    means that the model has no such decomposition.
    """

    scores: Tensor
    """Scores of the pairs, [n]."""
    words: Tensor | None = None
    """Contributions of the words, [n, words], including start and end marks; 0 for padding."""
    regions: Tensor | None = None
    """Contributions of the regions, [n, regions]."""
    attention: Tensor | None = None
    """Attention of every word to the regions, [n, words, regions], summing to 1 over them and 0 for
    padding; in a model whose words do not attend, attention of every region to the words."""


class RetrievalModel(nn.Module, ABC):
    """Embeds images and texts into one space as unit vectors, so that scores are cosines.

    Evaluation mode is deterministic, and an embedding depends on nothing else in its batch.
    """

    name: str
    width: int
    """Width of the embeddings."""
    reads_passages: ClassVar[bool] = False
    """Whether its images are texts: tokens with their length in front."""
    masks_words: ClassVar[bool] = False
    """Whether it masks words in training; vocabularies then contain a token for them."""

    @abstractmethod
    def embed_images(self, images: Tensor) -> Tensor:
        """Embed [n, 3, h, w] pixels or [n, (regions,) width] features as [n, width]."""

    @abstractmethod
    def embed_texts(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Embed int64 tokens [m, words], padded with 0, and their lengths [m] as [m, width]."""

    def forward(
        self,
        images: Tensor,
        tokens: Tensor,
        lengths: Tensor,
        image_of_text: Tensor | None = None,
        image_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Compute both embeddings in one call, as data-parallel training requires.

        `image_of_text` [m] is the index of the image that a text describes (by default, the text's
        own index), and images with equal `image_ids` [n] are the same one (by default, all differ).
        Only models with an `extra_loss` use them.
        """
        return self.embed_images(images), self.embed_texts(tokens, lengths)

    def extra_loss(self) -> Tensor | None:
        """Return a loss to add from the latest `forward` in training, if there is one.

        Each loss is returned only once, so that the model does not keep its graph.
        """
        return None

    def explain(self, images: Tensor, tokens: Tensor, lengths: Tensor) -> Contributions | None:
        """Decompose the score of image i with text i by words and regions, if that is exact.

        Takes what `embed_images` and `embed_texts` take, with as many images as texts. Call it in
        evaluation mode, whose scores it explains.
        """
        return None

    def learned_scale(self) -> LearnedScale | None:
        """Return the scale that replaces an objective's temperature, if the model learns one."""
        return None

    def fine_tune_backbone(self, enabled: bool) -> None:
        """Train or freeze the image backbone, if the model has one.

        Make the optimiser while the backbone is trainable: `parameter_groups` leaves frozen
        parameters out, and optimisers skip parameters that get no gradient.
        """
        for part in self.modules():
            if isinstance(part, Backbone):
                part.fine_tune(enabled)

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Group all trainable parameters, giving pretrained parts their own learning rates."""
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


class Reranker(RetrievalModel):
    """Scores pairs from the parts of an image and the parts of a text.

    The parts depend on their own side alone, so they are computed once for every image and every
    text, and only the score for every pair. A score depends on nothing but its pair: neither on the
    batch nor on the padding. If the model also embeds, its embeddings propose candidates, which its
    scores then re-rank.
    """

    @property
    def proposal_weight(self) -> float:
        """Weight of the embeddings' score that is added to a pair's own score in re-ranking."""
        return 0.0

    @abstractmethod
    def parts_of_images(self, images: Tensor) -> Tensor:
        """Compute parts, [n, regions, width], from the input of `embed_images`."""

    @abstractmethod
    def parts_of_texts(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Compute parts, [m, words, width], 0 after the last word, from `embed_texts`'s input."""

    @abstractmethod
    def score_pairs(self, images: Tensor, texts: Tensor, lengths: Tensor) -> Tensor:
        """Score image i with text i, given parts and lengths [p]: [p], in at least float32."""

    def score(self, images: Tensor, texts: Tensor, lengths: Tensor) -> Tensor:
        """Score every image with every text, given their parts: [n, m], in at least float32.

        This goes pair by pair; models that can share work between pairs override it.
        """
        pair = torch.arange(len(images) * len(texts))
        scores = [
            self.score_pairs(
                images[p // len(texts)], texts[p % len(texts)], lengths[p % len(texts)]
            )
            for p in torch.split(pair, PAIRS_AT_ONCE)
        ]
        return torch.cat(scores).view(len(images), len(texts))


class PairScorer(Reranker):
    """Scores pairs and has no embeddings; `forward` returns the parts of both sides."""

    def forward(
        self,
        images: Tensor,
        tokens: Tensor,
        lengths: Tensor,
        image_of_text: Tensor | None = None,
        image_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Compute the parts of both sides in one call."""
        return self.parts_of_images(images), self.parts_of_texts(tokens, lengths)

    def embed_images(self, images: Tensor) -> Tensor:
        raise ValueError(self.no_embeddings)

    def embed_texts(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        raise ValueError(self.no_embeddings)

    @property
    def no_embeddings(self) -> str:
        return (
            f"{self.name} scores pairs and has no embeddings: use a model that embeds, such as "
            "vse++"
        )


def unit(vectors: Tensor) -> Tensor:
    """Scale vectors to length 1 along the last dimension, in at least float32."""
    if vectors.dtype in (torch.bfloat16, torch.float16):
        vectors = vectors.float()
    return nn.functional.normalize(vectors, dim=-1)


def cosine_contributions(images: Tensor, texts: Tensor) -> Contributions | None:
    """Decompose cosines of sums: u . v / |u||v| is a sum over u's summands, and over v's.

    Each side is [n, summands, width], or [n, width] if it is not a sum; returns None if neither is.
    """
    if images.dim() == texts.dim() == 2:
        return None
    image, text = (unit(side if side.dim() == 2 else side.sum(1)) for side in (images, texts))
    scores = (image * text).sum(1)
    return Contributions(scores, words=_along(texts, image), regions=_along(images, text))


def _along(summands: Tensor, other: Tensor) -> Tensor | None:
    """Share out the cosine of a sum with a unit vector [n, width] to its summands."""
    if summands.dim() == 2:
        return None
    length: Tensor = summands.sum(1).norm(dim=1, keepdim=True).clamp(min=1e-12)
    return (summands @ other[..., None]).squeeze(2) / length


def xavier_linear(width_in: int, width_out: int) -> nn.Linear:
    """Create a linear layer with Xavier-uniform weights and zero bias, as in all the papers."""
    layer = nn.Linear(width_in, width_out)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
