"""Losses as a user would write them in plain torch, for one text per image.

Image i belongs to text i, so the positives are the diagonal of `scores[image, text]`, which is
built as a whole. The product is computed in the precision of the embeddings and everything after it
in float32, as under autocast. Values and gradients equal those of our defaults
(`tests/benchmarking/test_plain_losses.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid, softplus

PlainLoss = Callable[[Tensor, Tensor], Tensor]
"""Loss of the embeddings of images and texts, in which image i belongs to text i."""


def nt_xent(images: Tensor, texts: Tensor, temperature: float = 0.1) -> Tensor:
    logits = _scores(images, texts) / temperature
    own = torch.arange(len(logits), device=logits.device)
    return (cross_entropy(logits, own) + cross_entropy(logits.t(), own)) / 2


def triplet_hard(images: Tensor, texts: Tensor, margin: float = 0.2) -> Tensor:
    scores = _scores(images, texts)
    p, negatives = scores.diagonal(), _negatives(scores)
    by_image = (margin - p + negatives.max(1).values).relu()
    by_text = (margin - p + negatives.max(0).values).relu()
    return by_image.sum() + by_text.sum()


def triplet(images: Tensor, texts: Tensor, margin: float = 0.2) -> Tensor:
    scores = _scores(images, texts)
    p, own = scores.diagonal(), _own(scores)
    by_image = (margin - p[:, None] + scores).relu().masked_fill(own, 0)
    by_text = (margin - p + scores).relu().masked_fill(own, 0)
    return by_image.sum() + by_text.sum()


def siglip(images: Tensor, texts: Tensor, scale: float = 10, bias: float = -10) -> Tensor:
    logits = scale * _scores(images, texts) + bias
    sign = 2 * _own(logits).float() - 1
    return -logsigmoid(sign * logits).sum() / len(logits)


def circle(images: Tensor, texts: Tensor, margin: float = 0.25, scale: float = 64) -> Tensor:
    scores = _scores(images, texts)
    p, own = scores.diagonal(), _own(scores)
    positive = -scale * (1 + margin - p.detach()).relu() * (p - 1 + margin)
    pace = scale * (scores.detach() + margin).relu()
    negative = (pace * (scores - margin)).masked_fill(own, -torch.inf)
    by_image = softplus(negative.logsumexp(1) + positive)
    by_text = softplus(negative.logsumexp(0) + positive)
    return (by_image.mean() + by_text.mean()) / 2


def multi_similarity(images: Tensor, texts: Tensor, epsilon: float = 0.1) -> Tensor:
    alpha, beta, base = 2.0, 10.0, 0.5

    def one_way(scores: Tensor) -> Tensor:
        p, negatives = scores.diagonal(), _negatives(scores)
        mined = negatives > (p - epsilon)[:, None]
        pulled = p < negatives.amax(1) + epsilon
        pull = softplus(-alpha * (p - base)).where(pulled, 0) / alpha
        push = (beta * (scores - base)).exp().where(mined, 0).sum(1).log1p() / beta
        return (pull + push).mean()

    return _both_ways(one_way, images, texts) / 2


def binomial_deviance(images: Tensor, texts: Tensor) -> Tensor:
    alpha, beta, base = 2.0, 10.0, 0.5
    scores = _scores(images, texts)
    pull = softplus(-alpha * (scores.diagonal() - base)).mean() / alpha
    push = softplus(beta * (scores - base)).masked_fill(_own(scores), 0).sum()
    return pull + push / (len(scores) * (len(scores) - 1)) / beta


def smooth_ap(images: Tensor, texts: Tensor, temperature: float = 0.01) -> Tensor:
    scores = _scores(images, texts)
    p, own = scores.diagonal(), _own(scores)
    by_image = ((scores - p[:, None]) / temperature).sigmoid().masked_fill(own, 0).sum(1)
    by_text = ((scores - p) / temperature).sigmoid().masked_fill(own, 0).sum(0)
    return 1 - ((1 / (1 + by_image)).mean() + (1 / (1 + by_text)).mean()) / 2


# --- GOAL: T (P- n - P+ p), with T, P- and P+ held constant -------------------------------------


def constant_sigmoid(images: Tensor, texts: Tensor, margin: float = 0.2) -> Tensor:
    alpha, beta, base = 2.0, 10.0, 0.5

    def one_way(scores: Tensor) -> Tensor:
        p, n = scores.diagonal(), _negatives(scores).max(1).values
        with torch.no_grad():
            gate = (margin + n - p > 0).float()
            pull, push = (alpha * (base - p)).sigmoid(), (beta * (n - base)).sigmoid()
        return (gate * (push * n - pull * p)).sum()

    return _both_ways(one_way, images, texts)


def constant_linear_ms(images: Tensor, texts: Tensor, margin: float = 0.2) -> Tensor:
    def one_way(scores: Tensor) -> Tensor:
        p, (n, hardest) = scores.diagonal(), _negatives(scores).max(1)
        with torch.no_grad():
            gate = (margin + n - p > 0).float()
            m_positive = _mean(p[:, None] - p, _other_positives(p, n), empty=0)
            m_negative = _mean(n[:, None] - scores, _other_negatives(scores, hardest), empty=0)
            pull, push = (1 - m_positive) * (1 - p), (1 + m_negative) * n.relu()
        return (gate * (push * n - pull * p)).sum()

    return _both_ways(one_way, images, texts)


def circle_sigmoid_ms(
    images: Tensor, texts: Tensor, scale: float = 10, offset: float = 0.5
) -> Tensor:
    alpha, beta, base = 2.0, 10.0, 0.5

    def one_way(scores: Tensor) -> Tensor:
        p, (n, hardest) = scores.diagonal(), _negatives(scores).max(1)
        with torch.no_grad():
            weight = (scale * (n**2 + offset - p * (2 - p))).sigmoid()
            positives = (alpha * (p[:, None] - p)).exp()
            m_positive = _mean(positives, _other_positives(p, n), empty=1)
            negatives = (-beta * (n[:, None] - scores)).exp()
            m_negative = _mean(negatives, _other_negatives(scores, hardest), empty=1)
            pull = 1 / (m_positive + (alpha * (p - base)).exp())
            push = 1 / (m_negative + (-beta * (n - base)).exp())
        return (weight * (push * n - pull * p)).sum()

    return _both_ways(one_way, images, texts)


def _other_positives(p: Tensor, n: Tensor, epsilon: float = 0.1) -> Tensor:
    """Mask, [queries, pairs], of other pairs with a positive not far above the hardest negative."""
    return (p <= n[:, None] + epsilon).fill_diagonal_(False)


def _other_negatives(scores: Tensor, hardest: Tensor, epsilon: float = 0.1) -> Tensor:
    """Mask, [queries, candidates], of negatives not far below all positives, except the hardest."""
    high = (scores >= scores.diagonal().min() - epsilon).fill_diagonal_(False)
    return high.scatter(1, hardest[:, None], False)


def _mean(values: Tensor, chosen: Tensor, empty: float) -> Tensor:
    count = chosen.sum(1)
    return (values.where(chosen, 0).sum(1) / count.clamp(min=1)).where(count > 0, empty)


# --- scores -------------------------------------------------------------------------------------


def _scores(images: Tensor, texts: Tensor) -> Tensor:
    scores = images @ texts.t()
    return scores if scores.dtype == torch.float64 else scores.float()


def _own(scores: Tensor) -> Tensor:
    return torch.eye(len(scores), dtype=torch.bool, device=scores.device)


def _negatives(scores: Tensor) -> Tensor:
    return scores.masked_fill(_own(scores), -torch.inf)


def _both_ways(one_way: Callable[[Tensor], Tensor], images: Tensor, texts: Tensor) -> Tensor:
    scores = _scores(images, texts)
    return one_way(scores) + one_way(scores.t())


PLAIN: dict[str, PlainLoss] = {
    "nt-xent": nt_xent,
    "triplet-hard": triplet_hard,
    "triplet": triplet,
    "siglip": siglip,
    "circle": circle,
    "multi-similarity": multi_similarity,
    "binomial-deviance": binomial_deviance,
    "smooth-ap": smooth_ap,
    "constant/sigmoid": constant_sigmoid,
    "circle/sigmoid-ms": circle_sigmoid_ms,
    "constant/linear-ms": constant_linear_ms,
}
