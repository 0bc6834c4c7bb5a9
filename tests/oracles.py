"""Every formula once more, written from its equation in plain loops over Python floats.

Slow and obvious on purpose: nothing here is vectorised, shared with the package, or clever.
A score matrix is a list of rows, `positive[q][j]` says whether candidate j belongs to query q.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from typing import TypeVar

Matrix = list[list[float]]
Mask = list[list[bool]]


def split(row: list[float], mask: list[bool]) -> tuple[list[float], list[float]]:
    """Scores of the positives and of the negatives."""
    pos = [s for s, m in zip(row, mask, strict=True) if m]
    neg = [s for s, m in zip(row, mask, strict=True) if not m]
    return pos, neg


def log1p_exp(x: float) -> float:
    return x + math.log1p(math.exp(-x)) if x > 0 else math.log1p(math.exp(x))


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


# --- losses: the value of one query -------------------------------------------------------------


def triplet(pos: list[float], neg: list[float], margin: float = 0.2) -> float:
    """ICR eq. 3a."""
    total = 0.0
    for p in pos:
        for n in neg:
            total += max(margin - p + n, 0.0)
    return total


def triplet_hard(pos: list[float], neg: list[float], margin: float = 0.2) -> float:
    """ICR eq. 1."""
    return sum(max(margin - p + max(neg), 0.0) for p in pos) if neg else 0.0


def triplet_soft(
    pos: list[float], neg: list[float], margin: float = 0.2, temperature: float = 0.05
) -> float:
    """The hardest negative of eq. 1, softened: t log(sum of exp(n/t))."""
    if not neg:
        return 0.0
    softest = temperature * math.log(sum(math.exp(n / temperature) for n in neg))
    return sum(max(margin - p + softest, 0.0) for p in pos)


def nt_xent(pos: list[float], neg: list[float], temperature: float = 0.1) -> float:
    """ICR eq. 4, one term per positive whose sum runs over it and the negatives."""
    total = 0.0
    for p in pos:
        denominator = sum(math.exp((s - p) / temperature) for s in [p, *neg])
        total += math.log(denominator)
    return total / len(pos)


def smooth_ap(pos: list[float], neg: list[float], temperature: float = 0.01) -> float:
    """ICR eq. 5-8 with the sign of eq. 6: candidates that score higher push the rank down."""
    total = 0.0
    for i, s_i in enumerate(pos):
        rank_p = 1.0
        for j, s_j in enumerate(pos):
            if j != i:
                rank_p += logistic((s_j - s_i) / temperature)
        rank = rank_p
        for s_j in neg:
            rank += logistic((s_j - s_i) / temperature)
        total += rank_p / rank
    return 1 - total / len(pos)


def circle(pos: list[float], neg: list[float], scale: float = 64.0, margin: float = 0.25) -> float:
    """Sun et al. 2020, eq. 6 with the weights of eq. 5 and the margins of eq. 8."""
    sum_n = sum(math.exp(scale * max(n + margin, 0) * (n - margin)) for n in neg)
    sum_p = sum(math.exp(-scale * max(1 + margin - p, 0) * (p - (1 - margin))) for p in pos)
    return math.log(1 + sum_n * sum_p)


def circle_weights(
    pos: list[float], neg: list[float], scale: float = 64.0, margin: float = 0.25
) -> tuple[list[float], list[float]]:
    """Sun et al. 2020, eq. 10: gradients with the self-paced weights held constant."""
    e_n = [math.exp(scale * max(n + margin, 0) * (n - margin)) for n in neg]
    e_p = [math.exp(-scale * max(1 + margin - p, 0) * (p - (1 - margin))) for p in pos]
    z = sum(e_n) * sum(e_p) / (1 + sum(e_n) * sum(e_p))  # 1 - exp(-L), without cancellation
    on_p = [
        -z * e / sum(e_p) * scale * max(1 + margin - p, 0) for e, p in zip(e_p, pos, strict=True)
    ]
    on_n = [z * e / sum(e_n) * scale * max(n + margin, 0) for e, n in zip(e_n, neg, strict=True)]
    return on_p, on_n


def multi_similarity(
    pos: list[float],
    neg: list[float],
    alpha: float = 2.0,
    beta: float = 10.0,
    base: float = 0.5,
    epsilon: float | None = 0.1,
) -> float:
    """Wang et al. 2019, eq. 15, with the mining of eq. 11 and 12."""
    if epsilon is None:
        hard_p, hard_n = pos, neg
    else:
        hard_n = [n for n in neg if n > min(pos) - epsilon]
        hard_p = [p for p in pos if neg and p < max(neg) + epsilon]
    pull = math.log(1 + sum(math.exp(-alpha * (p - base)) for p in hard_p)) / alpha
    push = math.log(1 + sum(math.exp(beta * (n - base)) for n in hard_n)) / beta
    return pull + push


def binomial_deviance(
    pos: list[float], neg: list[float], alpha: float = 2.0, beta: float = 10.0, base: float = 0.5
) -> float:
    """Yi et al. 2014, eq. 10, divided by alpha and beta."""
    pull = sum(log1p_exp(-alpha * (p - base)) for p in pos) / len(pos) / alpha
    push = sum(log1p_exp(beta * (n - base)) for n in neg) / max(len(neg), 1) / beta
    return pull + push


def siglip(pos: list[float], neg: list[float], scale: float = 10.0, bias: float = -10.0) -> float:
    """Zhai et al. 2023, section 3.2: one row of the double sum."""
    total = 0.0
    for p in pos:
        total += -math.log(logistic(scale * p + bias))
    for n in neg:
        total += -math.log(logistic(-(scale * n + bias)))
    return total


def smooth(pos: list[float], neg: list[float]) -> float:
    """T (P- n - P+ p) of nca and sigmoid, which are the defaults of the family."""
    if not neg:
        return 0.0
    n, total = max(neg), 0.0
    for p in pos:
        weight = logistic(10 * (n - p))
        total += weight * (logistic(10 * (n - 0.5)) * n - logistic(2 * (0.5 - p)) * p)
    return total


LOSSES: dict[str, Callable[..., float]] = {
    "triplet": triplet,
    "triplet-hard": triplet_hard,
    "triplet-soft": triplet_soft,
    "nt-xent": nt_xent,
    "smooth-ap": smooth_ap,
    "circle": circle,
    "multi-similarity": multi_similarity,
    "binomial-deviance": binomial_deviance,
    "siglip": siglip,
    "smooth": smooth,
}


T = TypeVar("T")


def loop_of(table: Mapping[str, T], name: str) -> T:
    """What is registered needs a loop here before it is taken for right."""
    assert name in table, f"{name!r} has no plain loop: add one to tests/oracles.py, by its name"
    return table[name]


def loss_values(name: str, scores: Matrix, mask: Mask, **parameters: float | None) -> list[float]:
    """The value of every query; 0 for a query that has no positive."""
    values = []
    for row, row_mask in zip(scores, mask, strict=True):
        pos, neg = split(row, row_mask)
        values.append(loop_of(LOSSES, name)(pos, neg, **parameters) if pos else 0.0)
    return values


# --- GOAL: the weights of every candidate -------------------------------------------------------


def constant_triplet(p: float, n: float) -> float:
    """GOAL eq. 5."""
    return 1.0 if 0.2 + n - p > 0 else 0.0


def nca(p: float, n: float) -> float:
    """GOAL eq. 7."""
    return 1 / (1 + math.exp(10 * (p - n)))


def circle_triplet(p: float, n: float) -> float:
    """GOAL eq. 8, with the offset of 0.5 that the authors' code has."""
    return 1 / (1 + math.exp(10 * (p * (2 - p) - n**2 - 0.5)))


TRIPLET_WEIGHTS: dict[str, Callable[[float, float], float]] = {
    "constant": constant_triplet,
    "nca": nca,
    "circle": circle_triplet,
}


def constant_pair(p: float, n: float, *_: list[float]) -> tuple[float, float]:
    return 1.0, 1.0


def linear(p: float, n: float, *_: list[float]) -> tuple[float, float]:
    """GOAL eq. 9."""
    return 1 - p, max(n, 0.0)


def sigmoid(p: float, n: float, *_: list[float]) -> tuple[float, float]:
    """GOAL eq. 10."""
    return 1 / (1 + math.exp(2 * (p - 0.5))), 1 / (1 + math.exp(-10 * (n - 0.5)))


def linear_ms(p: float, n: float, set_p: list[float], set_n: list[float]) -> tuple[float, float]:
    """GOAL eq. 11 and 13."""
    m_p = sum(p - r for r in set_p) / len(set_p) if set_p else 0.0
    m_n = sum(n - r for r in set_n) / len(set_n) if set_n else 0.0
    return (1 - m_p) * (1 - p), (1 + m_n) * max(n, 0.0)


def sigmoid_ms(p: float, n: float, set_p: list[float], set_n: list[float]) -> tuple[float, float]:
    """GOAL eq. 11 and 12."""
    m_p = sum(math.exp(2 * (p - r)) for r in set_p) / len(set_p) if set_p else 1.0
    m_n = sum(math.exp(-10 * (n - r)) for r in set_n) / len(set_n) if set_n else 1.0
    return 1 / (m_p + math.exp(2 * (p - 0.5))), 1 / (m_n + math.exp(-10 * (n - 0.5)))


PAIR_WEIGHTS: dict[str, Callable[..., tuple[float, float]]] = {
    "constant": constant_pair,
    "linear": linear,
    "sigmoid": sigmoid,
    "linear-ms": linear_ms,
    "sigmoid-ms": sigmoid_ms,
}
"""Pair weights by p, n and the sets of the relative terms; an empty set is neutral."""


def goal_weights(name: str, scores: Matrix, mask: Mask, epsilon: float = 0.1) -> Matrix:
    """dL/ds of every candidate of every query."""
    t_kind, p_kind = name.split("/")
    triplet, pair = loop_of(TRIPLET_WEIGHTS, t_kind), loop_of(PAIR_WEIGHTS, p_kind)
    return weights_of(triplet, pair, scores, mask, epsilon)


def weights_of(
    triplet: Callable[[float, float], float],
    pair: Callable[..., tuple[float, float]],
    scores: Matrix,
    mask: Mask,
    epsilon: float,
) -> Matrix:
    """The weights of every candidate from those of triplets and pairs."""
    pairs = [(q, j) for q, row in enumerate(mask) for j, m in enumerate(row) if m]
    weights = [[0.0] * len(row) for row in scores]
    smallest = min((scores[q][j] for q, j in pairs), default=math.inf)
    for q, i in pairs:
        negatives = [j for j, m in enumerate(mask[q]) if not m]
        if not negatives:
            continue
        hardest = max(negatives, key=lambda j: (scores[q][j], -j))
        p, n = scores[q][i], scores[q][hardest]
        set_p = [scores[r][j] for r, j in pairs if (r, j) != (q, i) and scores[r][j] <= n + epsilon]
        set_n = [
            scores[q][j] for j in negatives if j != hardest and scores[q][j] >= smallest - epsilon
        ]
        weight = triplet(p, n)
        weight_p, weight_n = pair(p, n, set_p, set_n)
        weights[q][i] -= weight * weight_p
        weights[q][hardest] += weight * weight_n
    return weights


# --- COCOS and metrics --------------------------------------------------------------------------


def smooth_ap_triplets(
    row: list[float], mask: list[bool], epsilon: float, temperature: float = 0.01
) -> float:
    """ICR eq. 13, sim with the 1/t of eq. 11: contributing triplets per positive."""
    positives = [i for i, m in enumerate(mask) if m]
    if not positives:
        return 0.0
    count = 0
    for i in positives:
        above = [logistic((row[j] - row[i]) / temperature) for j in range(len(row)) if j != i]
        rank = 1 + sum(above)
        count += sum(g * (1 - g) / temperature / rank**2 > epsilon for g in above)
    return count / len(positives)


def best_rank(row: list[float], mask: list[bool]) -> float:
    """Sort the best positive among the negatives; ties share the mean of their places."""
    pos, neg = split(row, mask)
    if not pos:
        return math.inf
    best = max(pos)
    in_order = sorted([*neg, best], reverse=True)
    places = [place for place, score in enumerate(in_order, start=1) if score == best]
    return sum(places) / len(places)


def ranked_queries(scores: Matrix, mask: Mask) -> list[tuple[list[float], list[bool]]]:
    """The queries that have a positive."""
    return [(row, own) for row, own in zip(scores, mask, strict=True) if any(own)]


def median_rank(scores: Matrix, mask: Mask) -> float:
    return statistics.median(best_rank(*query) for query in ranked_queries(scores, mask))


def mean_rank(scores: Matrix, mask: Mask) -> float:
    return statistics.mean(best_rank(*query) for query in ranked_queries(scores, mask))


def map_at_5(scores: Matrix, mask: Mask, over: str = "positives") -> float:
    queries = ranked_queries(scores, mask)
    return statistics.mean(average_precision(*query, 5, over) for query in queries)


def map_at_5_found(scores: Matrix, mask: Mask) -> float:
    return map_at_5(scores, mask, "found")


METRICS: dict[str, Callable[[Matrix, Mask], float]] = {
    "median rank": median_rank,
    "mean rank": mean_rank,
    "mAP@5": map_at_5,
    "mAP@5 found": map_at_5_found,
}


def average_precision(row: list[float], mask: list[bool], k: int, over: str = "positives") -> float:
    """AP@k with the places of ties shared, denominator min(k, positives), or what was found."""

    def place(score: float, among: list[float]) -> float:
        in_order = sorted(among, reverse=True)
        places = [number for number, other in enumerate(in_order, start=1) if other == score]
        return sum(places) / len(places)

    pos, _ = split(row, mask)
    precisions = [place(p, pos) / place(p, row) for p in pos if place(p, row) <= k]
    if over == "found":
        return sum(precisions) / max(len(precisions), 1)
    return sum(precisions) / min(k, len(pos))
