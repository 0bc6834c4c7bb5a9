"""Image-text matching: pairs that belong together, and hard ones that do not (ALBEF, X-VLM).

Every text of a batch makes three pairs: the text with its image, its image with a text of another
image, and the text with another image. The latter two are sampled by how similar they are:

    P(candidate) = exp(score / temperature) / sum over the negatives of the query

The scores are those of the embeddings, without a gradient. Candidates with an equal id are never
drawn. A draw is the maximum of score / temperature plus Gumbel noise, which has this distribution.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class MatchingPairs:
    """Rows of images and texts, and whether they belong together."""

    images: Tensor
    texts: Tensor
    matched: Tensor
    """float [pairs]: 1 or 0"""
    counts: Tensor
    """float [pairs]: 0 where a query had no negative to draw"""


def draw_pairs(
    scores: Tensor, image_of_text: Tensor, image_ids: Tensor, temperature: Tensor
) -> MatchingPairs:
    """Draw one positive and two negative pairs for each text of scores[image, text]."""
    own = image_ids[:, None] == image_ids[image_of_text]
    of_images, of_texts = scores[image_of_text], scores.t()
    text, some_text = draw_negatives(of_images / temperature, own[image_of_text])
    image, some_image = draw_negatives(of_texts / temperature, own.t())
    texts = torch.arange(len(of_texts), device=scores.device)
    matched = torch.zeros(3, len(texts), device=scores.device)
    matched[0] = 1
    return MatchingPairs(
        images=torch.cat([image_of_text, image_of_text, image]),
        texts=torch.cat([texts, text, texts]),
        matched=matched.flatten(),
        counts=torch.cat([torch.ones_like(some_text), some_text, some_image]).float(),
    )


def draw_negatives(logits: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Draw a candidate for each query from the softmax over its negatives, and whether it has any.

    Candidates in the mask `own[query, candidate]` are never drawn.
    """
    noisy = (logits + gumbel_noise(logits)).masked_fill(own, -torch.inf)
    return noisy.argmax(1), ~own.all(1)


def gumbel_noise(like: Tensor) -> Tensor:
    """Draw Gumbel noise, -log of exponentially distributed numbers (never zero), row by row."""
    return -torch.empty_like(like, memory_format=torch.contiguous_format).exponential_().log()


def matching_loss(scores: Tensor, pairs: MatchingPairs) -> Tensor:
    """Average -log P(truth) over the pairs, where P(matched) = sigmoid(score)."""
    each = nn.functional.binary_cross_entropy_with_logits(scores, pairs.matched, reduction="none")
    return (each * pairs.counts).sum() / pairs.counts.sum()
