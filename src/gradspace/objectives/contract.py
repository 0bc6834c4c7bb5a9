"""What an objective is: a row function, written once and executed in several ways.

For a query with candidate scores s_1 .. s_m an objective gives one value, whose gradient with
respect to the scores is the weight of every candidate. An objective never touches the score matrix.
It says which statistics of the negatives it needs (`statistics`) and combines them with the scores
of the positives (`value`):

    positives' scores -> statistics wanted -> [execution reduces the negatives] -> value per query

so that `gradspace.execution` may hold the whole matrix, stream it in tiles or share it between
processes, and no formula is written twice.
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
    """How the publication reduces the values of a batch: see `RetrievalLoss`."""
    is_loss: ClassVar[bool] = True
    """Are the weights the derivative of the value? False where parts of it are held constant."""
    value_note: ClassVar[str] = ""
    """What to know of the values that training shows, where they do not look like a loss."""
    mined: ClassVar[bool] = False
    """Does only the hardest negative of a query get a weight?"""
    uses_offline: ClassVar[bool] = False
    """Has it terms for mined negatives? To others they are further candidates."""
    counted_over_all: ClassVar[bool] = False
    """Does ICR average its C^q over all queries, not over those with a contribution?"""

    @property
    def sharpness(self) -> float:
        """The factor of all weights that comes from a temperature alone, 1 / temperature."""
        return 1.0

    @abstractmethod
    def statistics(self, positive: PositiveScores) -> tuple[Statistic, ...]:
        """What has to be known about each query's negatives."""

    @abstractmethod
    def value(self, positive: PositiveScores, *statistics: Tensor) -> Tensor:
        """[queries], from the positives' scores and the statistics in the order asked for."""

    def __call__(
        self,
        scores: Tensor,
        positives: Tensor | Positives,
        offline: OfflineScores | None = None,
    ) -> Tensor:
        """[queries], from `scores[query, candidate]`; 0 for a query that has no positive."""
        return row_values(self, scores, positives, offline)

    def num_contributing(
        self, weights: Tensor, scores: Tensor, positives: Positives, epsilon: float
    ) -> Tensor:
        """[queries]: how many negatives have a |weight| above epsilon (the C^q of COCOS)."""
        return (weights.abs().scatter(1, positives.index, 0) > epsilon).sum(1)
