"""COCOS: counting the samples that contribute to the gradient of a query (ICR section 4).

Everything is derived from the weights that every objective has (`score_weights`), so any objective
can be counted, not only the paper's three. Differences from the paper's published code are listed
in docs/explanation/cocos.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Literal, get_args

import torch
from torch import Tensor

from gradspace.analysis.weights import score_weights
from gradspace.checks import check_scores
from gradspace.objectives import Objective, as_objective
from gradspace.scores.positives import Positives, as_positives
from gradspace.scores.tiles import as_computed

Convention = Literal["gradient", "icr"]


@dataclass(frozen=True)
class Counting:
    """Rule for what counts as a contribution to the gradient of a query."""

    epsilon: float = 0.01
    """Largest weight that does not count."""
    convention: Convention = "gradient"
    """Weights that are counted: those of the gradient, or, with "icr", those of ICR's tables. There
    the weights of NT-Xent and SmoothAP lack the factor 1 / temperature, and C^q of NT-Xent is the
    mean over all queries."""

    def __post_init__(self) -> None:
        if not self.epsilon >= 0:
            raise ValueError(f"epsilon must be zero or a positive number, got {self.epsilon!r}")
        if self.convention not in get_args(Convention):
            raise ValueError(f"convention must be 'gradient' or 'icr', got {self.convention!r}")

    def __str__(self) -> str:
        kind = "as ICR counts" if self.convention == "icr" else "of the gradient"
        return f"weights {kind}, larger than {self.epsilon:g}"


@dataclass(frozen=True)
class Cocos:
    """Counts of one batch, in one direction."""

    per_query: float = field(metadata={"symbol": "C^q"})
    """Contributing negatives (SmoothAP: triplets, eq. 13), mean over queries with at least one."""
    per_batch: float = field(metadata={"symbol": "C^B"})
    """Contributing negatives (SmoothAP: triplets), summed over the batch."""
    queries_without: float = field(metadata={"symbol": "C^0"})
    """Number of queries without any contribution."""
    negative_weight: float = field(metadata={"symbol": "W-"})
    """Summed |weight| of the contributing negatives, mean over queries with a positive."""
    positive_weight: float = field(metadata={"symbol": "W+"})
    """Mean |weight| of the positives, mean over queries with a positive."""
    effective: float = field(metadata={"symbol": "C_eff"})
    """Effective number of negatives, (sum |w|)^2 / sum w^2, mean over queries with weight."""


def cocos(
    objective: Objective | str,
    scores: Tensor,
    positives: Tensor | Positives,
    epsilon: float = 0.01,
    convention: Convention = "gradient",
) -> Cocos:
    """Count contributions in one direction, with rows as queries; transpose for the other.

    `epsilon` and `convention` are those of `Counting`.
    """
    return count(as_objective(objective), scores, positives, Counting(epsilon, convention))


def count(
    objective: Objective, scores: Tensor, positives: Tensor | Positives, counting: Counting
) -> Cocos:
    """Count contributions in one direction of a batch."""
    check_scores(scores)
    positives = as_positives(positives)
    scores = as_computed(scores.detach())
    published = counting.convention == "icr"
    factor = objective.sharpness if published else 1.0
    weights = score_weights(objective, scores, positives)
    least = counting.epsilon * factor
    counts = objective.num_contributing(weights, scores, positives, least).double()
    strength = weights.abs().double()
    on_negatives = strength.scatter(1, positives.index, 0)
    on_positives = strength.gather(1, positives.index).where(positives.valid, 0)
    total, squares = on_negatives.sum(1), on_negatives.square().sum(1)
    has = positives.any_valid
    counted_over = has if published and objective.counted_over_all else counts > 0
    contributing = on_negatives.where(on_negatives > least, 0).sum(1)
    per_positive = on_positives.sum(1) / positives.valid.sum(1).clamp(min=1)
    return Cocos(
        per_query=_mean(counts, counted_over),
        per_batch=float(counts.sum()),
        queries_without=float((counts == 0).sum()),
        negative_weight=_mean(contributing / factor, has),
        positive_weight=_mean(per_positive / factor, has),
        effective=_mean(total.square() / squares.clamp(min=1e-300), squares > 0),
    )


class CocosMeter:
    """Mean and standard deviation of the counts over batches.

    Examples:
        >>> meter = CocosMeter()
        >>> meter.update(Cocos(1, 10, 0, 1, 1, 1))
        >>> meter.update(Cocos(3, 30, 0, 1, 1, 1))
        >>> meter["per_query"]
        (2.0, 1.4142135623730951)
    """

    def __init__(self) -> None:
        self._batches: list[Cocos] = []

    def update(self, batch: Cocos) -> None:
        self._batches.append(batch)

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, name: str) -> tuple[float, float]:
        """Return mean and standard deviation of the count of that name."""
        values = torch.tensor([getattr(b, name) for b in self._batches], dtype=torch.float64)
        deviation = values.std() if len(values) > 1 else torch.zeros(())
        return float(values.mean()), float(deviation)

    def __iter__(self) -> Iterator[str]:
        return (count.name for count in fields(Cocos))


def _mean(values: Tensor, selected: Tensor) -> float:
    """Mean of the selected values; 0 if none are selected."""
    return float(values[selected].mean()) if selected.any() else 0.0
