"""Losses as one would first write them: a loop over the queries, with one formula each.

`p` are the scores of the query's positives, `n` those of its negatives. The matrix product is
computed once for all queries, and its rows are taken by iteration, which autograd reverses in one
step; indexing `scores[query]` would make the loop quadratic.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import normalize, softplus

from benchmarks.case import Batch

Formula = Callable[[Tensor, Tensor, Tensor], Tensor]


def nt_xent(p: Tensor, n: Tensor, _: Tensor, t: float = 0.1) -> Tensor:
    return (torch.logaddexp(p / t, (n / t).logsumexp(0)) - p / t).mean()


def triplet_hard(p: Tensor, n: Tensor, _: Tensor, margin: float = 0.2) -> Tensor:
    return (margin - p + n.max()).relu().sum()


def triplet(p: Tensor, n: Tensor, _: Tensor, margin: float = 0.2) -> Tensor:
    return (margin - p[:, None] + n).relu().sum()


def circle(p: Tensor, n: Tensor, _: Tensor, m: float = 0.25, scale: float = 64) -> Tensor:
    negative = scale * (n.detach() + m).relu() * (n - m)
    positive = -scale * (1 + m - p.detach()).relu() * (p - 1 + m)
    return softplus(negative.logsumexp(0) + positive.logsumexp(0))


def multi_similarity(p: Tensor, n: Tensor, _: Tensor) -> Tensor:
    alpha, beta, base = 2, 10, 0.5
    pull = (1 + (-alpha * (p - base)).exp().sum()).log() / alpha
    return pull + (1 + (beta * (n - base)).exp().sum()).log() / beta


def mined_multi_similarity(p: Tensor, n: Tensor, _: Tensor, epsilon: float = 0.1) -> Tensor:
    return multi_similarity(p[p < n.max() + epsilon], n[n > p.min() - epsilon], _)


def smooth_ap(p: Tensor, n: Tensor, _: Tensor, t: float = 0.01) -> Tensor:
    above_in_positives = ((p - p[:, None]) / t).sigmoid()
    rank_in_positives = 1 + above_in_positives.sum(1) - above_in_positives.diagonal()
    rank = rank_in_positives + ((n - p[:, None]) / t).sigmoid().sum(1)
    return 1 - (rank_in_positives / rank).mean()


def circle_sigmoid_ms(p: Tensor, n: Tensor, all_p: Tensor) -> Tensor:
    """GOAL eq. 8, with its code's offset, and 12; `all_p` has the scores of all positive pairs."""
    scale, alpha, beta, base, epsilon = 10, 2, 10, 0.5, 0.1
    hardest, at = n.max(0)
    with torch.no_grad():
        others = torch.cat([n[:at], n[at + 1 :]])
        others = others[others >= all_p.min() - epsilon]
        m_negative = (beta * (others - hardest)).exp().mean() if len(others) else 1
        below = all_p[all_p <= hardest + epsilon]
        own = (p <= hardest + epsilon).to(p.dtype)
        count = len(below) - own
        total = (alpha * (p[:, None] - below)).exp().sum(1) - own
        m_positive = (total / count.clamp(min=1)).where(count > 0, 1)
        triplet_weight = (scale * (0.5 + hardest**2 - p * (2 - p))).sigmoid()
        positive_weight = 1 / (m_positive + (alpha * (p - base)).exp())
        negative_weight = 1 / (m_negative + (-beta * (hardest - base)).exp())
    return (triplet_weight * (negative_weight * hardest - positive_weight * p)).sum()


FORMULAS: dict[str, Formula] = {
    "nt-xent": nt_xent,
    "triplet-hard": triplet_hard,
    "triplet": triplet,
    "circle": circle,
    "multi-similarity": mined_multi_similarity,
    "multi-similarity, not mined": multi_similarity,
    "smooth-ap": smooth_ap,
    "circle/sigmoid-ms": circle_sigmoid_ms,
}
SUMMED = ("triplet-hard", "triplet", "circle/sigmoid-ms")


def loop_loss(what: str, share: float = 1.0) -> Callable[[Batch], Tensor]:
    """Make the loss in both directions, over the first `share` of each's queries (at least one)."""

    def both_ways(b: Batch) -> Tensor:
        images, texts = normalize(b.images, dim=1), normalize(b.texts, dim=1)
        all_p = (images[b.text_ids] * texts).sum(1).detach()
        by_image = _values(FORMULAS[what], images, b.image_ids, texts, b.text_ids, all_p, share)
        by_text = _values(FORMULAS[what], texts, b.text_ids, images, b.image_ids, all_p, share)
        if what in SUMMED:
            return by_image.sum() + by_text.sum()
        return (by_image.mean() + by_text.mean()) / 2

    return both_ways


def _values(
    formula: Formula,
    queries: Tensor,
    ids: Tensor,
    candidates: Tensor,
    candidate_ids: Tensor,
    all_p: Tensor,
    share: float,
) -> Tensor:
    count = max(round(share * len(queries)), 1)
    scores = queries[:count] @ candidates.t()
    own = ids[:count, None] == candidate_ids
    return torch.stack([formula(s[o], s[~o], all_p) for s, o in zip(scores, own, strict=True)])
