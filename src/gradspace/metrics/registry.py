"""Registration: a metric is a decorated function of ranks, found by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gradspace.metrics.ranking import PositiveRanks

Measure = Callable[[PositiveRanks], float]


@dataclass(frozen=True)
class MetricInfo:
    """A registered metric of one direction."""

    name: str
    """In tables and recipes, where its direction comes first: `i2t mean rank`."""
    measure: Measure
    heading: str
    """In the report that people read."""
    decimals: int
    share: bool
    """Is it in [0, 1]? People are shown percent, as of recalls."""

    def shown(self, value: float) -> float:
        return 100 * value if self.share else value

    @property
    def key(self) -> str:
        """In JSON."""
        return self.measure.__name__


METRICS: dict[str, MetricInfo] = {}
RESERVED = {"average", "average_recall", "recall", "num_queries"}
"""What a report has beside these metrics."""


def metric(
    name: str, *, heading: str | None = None, decimals: int = 1, share: bool = False
) -> Callable[[Measure], Measure]:
    """Register `measure(ranks of one direction) -> float`: every report has it, by its name."""

    def register(measure: Measure) -> Measure:
        info = MetricInfo(name, measure, heading or name, decimals, share)
        taken = {*RESERVED, *METRICS, *(known.key for known in METRICS.values())}
        for own in (info.name, info.key):
            if own in taken or own.startswith("R@"):
                raise ValueError(f"{own!r} is the name of another metric: choose one that is free")
        METRICS[name] = info
        return measure

    return register
