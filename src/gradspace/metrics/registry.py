"""Registry of metrics: a metric is a decorated function of ranks, found by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gradspace.metrics.ranking import PositiveRanks

Measure = Callable[[PositiveRanks], float]


@dataclass(frozen=True)
class MetricInfo:
    """A registered metric of one direction."""

    name: str
    """Name in tables and recipes, there preceded by the direction: `i2t mean rank`."""
    measure: Measure
    heading: str
    """Column heading in printed reports."""
    decimals: int
    share: bool
    """Whether it is in [0, 1], and printed in percent as recalls are."""

    def shown(self, value: float) -> float:
        return 100 * value if self.share else value

    @property
    def key(self) -> str:
        """Name in JSON."""
        return self.measure.__name__


METRICS: dict[str, MetricInfo] = {}
RESERVED = {"average", "average_recall", "recall", "num_queries"}
"""Names of what a report contains besides these metrics."""


def metric(
    name: str, *, heading: str | None = None, decimals: int = 1, share: bool = False
) -> Callable[[Measure], Measure]:
    """Register `measure(ranks of one direction) -> float`, which every report then contains."""

    def register(measure: Measure) -> Measure:
        info = MetricInfo(name, measure, heading or name, decimals, share)
        taken = {*RESERVED, *METRICS, *(known.key for known in METRICS.values())}
        for own in (info.name, info.key):
            if own in taken or own.startswith("R@"):
                raise ValueError(f"{own!r} is the name of another metric: choose a different one")
        METRICS[name] = info
        return measure

    return register
