"""Metrics of one direction, from ranks. A decorated function is in every report and every table."""

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
    """Median over the queries of their best positive's rank."""
    best = found.finite_best
    return float(best.quantile(0.5)) if len(best) < 1 << 24 else float(best.median())


@metric("mean rank", heading="mean r")
def mean_rank(found: PositiveRanks) -> float:
    """Mean over the queries of their best positive's rank."""
    return float(found.finite_best.mean())


@metric("mAP@5", share=True)
def map_at_5(found: PositiveRanks) -> float:
    """Mean average precision of the first five, in [0, 1]."""
    return precision_at(found, 5)


@metric("mAP@5 found", heading="found", share=True)
def map_at_5_found(found: PositiveRanks) -> float:
    """Precision averaged over the positives among the first five, in [0, 1], as ICR has it."""
    return precision_at(found, 5, "found")


def recall(
    scores: Tensor | Scores, positives: Tensor | Positives, ks: Sequence[int] = (1, 5, 10)
) -> dict[int, float]:
    """R@k in percent: queries whose best positive ranks k or better, of those that have a positive.

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
    """mAP@k in [0, 1], mean over the queries that have a positive.

    The precision at a positive is its rank among the positives over its rank among all, ties halved
    in both; positives that rank behind k are left out. The sum is divided by min(k, positives), or,
    `over` what was "found" as in ICR, by the number of positives that are not left out: a query
    with one positive on top and the others behind k then has 1.
    """
    check_count("k", k)
    return precision_at(rank_rows(scores, positives), k, over)


def recall_at(best: Tensor, ks: Sequence[int]) -> dict[int, float]:
    """R@k in percent, from the rank of each query's best positive."""
    if not isinstance(ks, Sequence) or not ks:
        raise ValueError(f"ks must be ranks such as (1, 5, 10), got {ks!r}")
    for k in ks:
        check_count("every k of ks", k)
    return {k: 100 * float((best <= k).double().mean()) for k in ks}


def precision_at(found: PositiveRanks, k: int, over: AveragedOver = "positives") -> float:
    """mAP@k, from the ranks of all positives."""
    if over not in ("positives", "found"):
        raise ValueError(f"over must be 'positives' or 'found', got {over!r}")
    rank = found.overall
    counted = found.valid & (rank <= k)
    total = (found.among_positives / rank).where(counted, 0).sum(1)
    num_positives = found.valid.sum(1)
    divided_by = num_positives.clamp(max=k) if over == "positives" else counted.sum(1)
    precision = total / divided_by.clamp(min=1)
    return float(precision[num_positives > 0].mean())
