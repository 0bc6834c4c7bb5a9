"""Results of a study: its points, and the best of every objective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from gradspace.comparison.grid import Cell
from gradspace.comparison.study import StudyPoint

Outcome = Callable[[Cell], float | None]
"""Metric of a run on dev, higher is better; None until it has finished."""


@dataclass(frozen=True)
class Tried:
    """A point of a study, with its results on dev."""

    search: tuple[str, str, str]
    """Dataset, model and objective, which are searched separately."""
    point: StudyPoint
    cells: tuple[Cell, ...]
    """Cells of its seeds."""
    values: tuple[float, ...]
    """Metrics of the seeds that have finished."""

    @property
    def is_whole(self) -> bool:
        return len(self.values) == len(self.cells)

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def std(self) -> float | None:
        return stdev(self.values) if len(self.values) > 1 else None


def tried_points(cells: Sequence[Cell], outcome: Outcome) -> list[Tried]:
    """List every point in the order of its first run."""
    found: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.dataset, cell.model, cell.objective), []).append(cell)
    return [
        Tried(
            seeds[0].search,
            seeds[0].point,
            tuple(seeds),
            tuple(value for value in map(outcome, seeds) if value is not None),
        )
        for seeds in found.values()
    ]


def best_points(tried: Sequence[Tried]) -> list[Tried]:
    """Return the best point of every search, the best of them first; none if everything failed."""
    found: dict[tuple[str, str, str], Tried] = {}
    for one in sorted((one for one in tried if one.values), key=lambda one: -one.mean):
        if one.mean > 0:
            found.setdefault(one.search, one)
    return list(found.values())
