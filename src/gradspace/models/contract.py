"""What a model is: images and texts in, unit vectors of one space or scores of pairs out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gradspace.models.backbones import Backbone
from gradspace.models.pretrained import Pretrained

PAIRS_AT_ONCE = 256
"""That are scored in one go where they come one by one."""


@dataclass(frozen=True)
class LearnedScale:
    """A model's own way from cosines to logits, scale * cosine + bias, which is trained."""

    scale: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Contributions:
    """How the scores of n pairs come about: what every word and every region adds to them.

    Those of the words of a pair add up to its score, and so do those of its regions. None: the
    model cannot tell.
    """

    scores: Tensor
    """[n]"""
    words: Tensor | None = None
    """[n, words], marks of start and end included; 0 for padding."""
    regions: Tensor | None = None
    """[n, regions]"""
    attention: Tensor | None = None
    """[n, words, regions], 0 for padding: of every word to the regions, of sum 1 over them; or, in
    a model whose words do not attend, of every region to the words."""


class RetrievalModel(nn.Module, ABC):
    """Embeds images and texts into one space; unit vectors, so that scores are cosines.

    Evaluation mode is deterministic, and an embedding depends on nothing else in its batch.
    """

    name: str
    width: int
    """Of the embeddings."""
    reads_passages: ClassVar[bool] = False
    """Are its images texts, as `gradspace.models.prepare.passages.PassageTokens` makes them?"""
    masks_words: ClassVar[bool] = False
    """Does it mask words in training? Vocabularies then have a token for them."""

    @abstractmethod
    def embed_images(self, images: Tensor) -> Tensor:
        """[n, width], from [n, 3, h, w] pixels or [n, (regions,) width] features."""

    @abstractmethod
    def embed_texts(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """[m, width], from int64 [m, words] padded with 0, and how many of them count, [m]."""

    def forward(
        self,
        images: Tensor,
        tokens: Tensor,
        lengths: Tensor,
        image_of_text: Tensor | None = None,
        image_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Both embeddings in one call, as data-parallel training needs it.

        `image_of_text` [m] says which of the images a text describes (by default the one in its
        place), and images with equal `image_ids` [n] are the same one (by default all differ); only
        a model with an `extra_loss` looks at them.
        """
        return self.embed_images(images), self.embed_texts(tokens, lengths)

    def extra_loss(self) -> Tensor | None:
        """Hand over what the latest `forward` in training wants added to the loss, if anything.

        Each loss is handed over once: the model does not keep its graph.
        """
        return None

    def explain(self, images: Tensor, tokens: Tensor, lengths: Tensor) -> Contributions | None:
        """Which words and regions the score of image i with text i is made of, if that is exact.

        Takes what `embed_images` and `embed_texts` take, as many images as texts. It is the
        evaluation's score that is explained: call it in evaluation mode.
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


class Reranker(RetrievalModel):
    """Scores pairs from the parts of an image and the parts of a text.

    The parts depend on their own side alone, so that they are computed once for every image and
    every text, and only the score for every pair. A score depends on nothing but its pair: not on
    the batch, and not on the padding. Where the model also embeds, its embeddings propose
    candidates, and its scores put them in order.
    """

    @property
    def proposal_weight(self) -> float:
        """What the embeddings' score of a pair counts beside its own, where it re-ranks."""
        return 0.0

    @abstractmethod
    def parts_of_images(self, images: Tensor) -> Tensor:
        """[n, regions, width], from what `embed_images` takes."""

    @abstractmethod
    def parts_of_texts(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """[m, words, width], from what `embed_texts` takes; zeros after the last word."""

    @abstractmethod
    def score_pairs(self, images: Tensor, texts: Tensor, lengths: Tensor) -> Tensor:
        """[p], at least float32: of image i with text i, given their parts and lengths [p]."""

    def score(self, images: Tensor, texts: Tensor, lengths: Tensor) -> Tensor:
        """[n, m], at least float32: of every image with every text, given their parts.

        One that can share work between the pairs of a block says how; this goes pair by pair.
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
    """Scores pairs and has no embeddings; `forward` hands over the parts of both sides."""

    def forward(
        self,
        images: Tensor,
        tokens: Tensor,
        lengths: Tensor,
        image_of_text: Tensor | None = None,
        image_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The parts of both sides in one call."""
        return self.parts_of_images(images), self.parts_of_texts(tokens, lengths)

    def embed_images(self, images: Tensor) -> Tensor:
        raise ValueError(self.no_embeddings)

    def embed_texts(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        raise ValueError(self.no_embeddings)

    @property
    def no_embeddings(self) -> str:
        return f"{self.name} scores pairs and has no embeddings: use a model that embeds, as vse++"


def unit(vectors: Tensor) -> Tensor:
    """Length 1 along the last dimension, in float32 or better."""
    if vectors.dtype in (torch.bfloat16, torch.float16):
        vectors = vectors.float()
    return nn.functional.normalize(vectors, dim=-1)


def cosine_contributions(images: Tensor, texts: Tensor) -> Contributions | None:
    """Of cosines between sums: u . v / |v| is a sum over the summands of v, and over those of u.

    Each side is [n, summands, width], or [n, width] where it is no sum; None where neither is one.
    """
    if images.dim() == texts.dim() == 2:
        return None
    image, text = (unit(side if side.dim() == 2 else side.sum(1)) for side in (images, texts))
    scores = (image * text).sum(1)
    return Contributions(scores, words=_along(texts, image), regions=_along(images, text))


def _along(summands: Tensor, other: Tensor) -> Tensor | None:
    """[n, summands]: what each adds to the cosine of their sum with a unit vector [n, width]."""
    if summands.dim() == 2:
        return None
    length: Tensor = summands.sum(1).norm(dim=1, keepdim=True).clamp(min=1e-12)
    return (summands @ other[..., None]).squeeze(2) / length


def xavier_linear(width_in: int, width_out: int) -> nn.Linear:
    """A fully connected layer, Xavier-uniform weights and no bias at first (all papers)."""
    layer = nn.Linear(width_in, width_out)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
