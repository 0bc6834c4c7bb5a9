"""Contract of an objective: a row function, written once and executed in several ways.

For a query with candidate scores s_1 .. s_m an objective gives one value, whose gradient with
respect to the scores is the weight of every candidate. An objective never touches the score matrix.
It names the statistics of the negatives that it needs (`statistics`) and combines them with the
scores of the positives (`value`):

    positives' scores -> statistics wanted -> [execution reduces the negatives] -> value per query

`gradspace.execution` is therefore free to hold the whole matrix, stream it in tiles or share it
between processes, and no formula is written twice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

from torch import Tensor

from gradspace.objectives.rows import row_values
from gradspace.objectives.statistics import OfflineScores, PositiveScores, Statistic
from gradspace.scores.positives import Positives

Reduction = Literal["sum", "mean"]


class Objective(ABC):
    """A row function: `objective(scores, positives) -> value per query`.

    Subclasses are frozen dataclasses whose fields are the parameters.
    """

    name: str
    reduction: ClassVar[Reduction]
    """Reduction over a batch as published; see `RetrievalLoss`."""
    is_loss: ClassVar[bool] = True
    """Whether the weights are the derivative of the value; False if parts of it are constant."""
    value_note: ClassVar[str] = ""
    """Explanation of the values that training shows, if they do not behave like a loss."""
    mined: ClassVar[bool] = False
    """Whether only the hardest negative of a query gets a weight."""
    uses_offline: ClassVar[bool] = False
    """Whether it has terms for mined negatives; for other objectives they are more candidates."""
    counted_over_all: ClassVar[bool] = False
    """Whether ICR averages its C^q over all queries, not just over those with contributions."""

    @property
    def sharpness(self) -> float:
        """Factor in all weights that is due to a temperature alone, 1 / temperature."""
        return 1.0

    @abstractmethod
    def statistics(self, positive: PositiveScores) -> tuple[Statistic, ...]:
        """Name the statistics of each query's negatives that `value` needs."""

    @abstractmethod
    def value(self, positive: PositiveScores, *statistics: Tensor) -> Tensor:
        """Compute the values, [queries], from the positives and the requested statistics."""

    def __call__(
        self,
        scores: Tensor,
        positives: Tensor | Positives,
        offline: OfflineScores | None = None,
    ) -> Tensor:
        """Compute the values, [queries], of `scores[query, candidate]`; 0 without a positive."""
        return row_values(self, scores, positives, offline)

    def num_contributing(
        self, weights: Tensor, scores: Tensor, positives: Positives, epsilon: float
    ) -> Tensor:
        """Count each query's negatives with a |weight| above epsilon (the C^q of COCOS)."""
        return (weights.abs().scatter(1, positives.index, 0) > epsilon).sum(1)
