"""Metrics of one direction, computed from ranks; every report has the decorated ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from gradspace.checks import check_count
from gradspace.metrics.ranking import PositiveRanks, rank_rows, ranks
from gradspace.metrics.registry import metric
from gradspace.scores.positives import Positives
from gradspace.scores.tiles import Scores

AveragedOver = Literal["positives", "found"]


@metric("median rank", heading="median r")
def median_rank(found: PositiveRanks) -> float:
    """Median rank, over the queries, of the best positive."""
    best = found.finite_best
    return float(best.quantile(0.5)) if len(best) < 1 << 24 else float(best.median())


@metric("mean rank", heading="mean r")
def mean_rank(found: PositiveRanks) -> float:
    """Mean rank, over the queries, of the best positive."""
    return float(found.finite_best.mean())


@metric("mAP@5", share=True)
def map_at_5(found: PositiveRanks) -> float:
    """Mean average precision at 5, in [0, 1]."""
    return precision_at(found, 5)


@metric("mAP@5 found", heading="found", share=True)
def map_at_5_found(found: PositiveRanks) -> float:
    """Precision averaged over the positives among the first five, in [0, 1], as in ICR."""
    return precision_at(found, 5, "found")


def recall(
    scores: Tensor | Scores, positives: Tensor | Positives, ks: Sequence[int] = (1, 5, 10)
) -> dict[int, float]:
    """Compute R@k in percent: the share of queries whose best positive ranks k or better.

    Queries without a positive are left out.

    Examples:
        >>> import torch
        >>> recall(torch.eye(4), torch.eye(4, dtype=torch.bool))
        {1: 100.0, 5: 100.0, 10: 100.0}
    """
    best = ranks(scores, positives)
    return recall_at(best[best.isfinite()], ks)


def mean_average_precision(
    scores: Tensor | Scores,
    positives: Tensor | Positives,
    k: int = 5,
    over: AveragedOver = "positives",
) -> float:
    """Compute mAP@k in [0, 1], the mean over the queries that have a positive.

    The precision at a positive is its rank among the positives over its rank among all, with ties
    counted half in both; positives ranking below k are left out. The sum is divided by
    min(k, positives) or, with over="found" as in ICR, by the number of positives among the first k:
    a query with one positive on top and all others below k then scores 1.
    """
    check_count("k", k)
    return precision_at(rank_rows(scores, positives), k, over)


def recall_at(best: Tensor, ks: Sequence[int]) -> dict[int, float]:
    """Compute R@k in percent from the rank of each query's best positive."""
    if not isinstance(ks, Sequence) or not ks:
        raise ValueError(f"ks must be ranks such as (1, 5, 10), got {ks!r}")
    for k in ks:
        check_count("every k of ks", k)
    return {k: 100 * float((best <= k).double().mean()) for k in ks}


def precision_at(found: PositiveRanks, k: int, over: AveragedOver = "positives") -> float:
    """Compute mAP@k from the ranks of all positives."""
    if over not in ("positives", "found"):
        raise ValueError(f"over must be 'positives' or 'found', got {over!r}")
    rank = found.overall
    counted = found.valid & (rank <= k)
    total = (found.among_positives / rank).where(counted, 0).sum(1)
    num_positives = found.valid.sum(1)
    divided_by = num_positives.clamp(max=k) if over == "positives" else counted.sum(1)
    precision = total / divided_by.clamp(min=1)
    return float(precision[num_positives > 0].mean())
