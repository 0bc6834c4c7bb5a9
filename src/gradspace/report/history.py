"""Training histories of an objective's runs, as curves over the seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradspace.comparison.entries import Entry, Group

MOST_POINTS = 40
"""Largest number of points of a curve; if there are more, neighbours are averaged."""

Line = Mapping[str, Any]
Read = Callable[[Line], float | None]


@dataclass(frozen=True, eq=False)
class Curve:
    """A curve's mean over seeds, and their range."""

    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


class History:
    """Lines of every run's metrics.jsonl, read once."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._lines = {id(entry): _lines(entry) for entry in entries}

    def lines(self, entry: Entry, kind: str) -> list[Line]:
        return [line for line in self._lines[id(entry)] if line.get("kind") == kind]

    def curves(self, group: Group, kind: str, x: Read, y: Read) -> dict[str, Curve]:
        """Compute the curves by objective, leaving out those without points."""
        found = {
            objective: curve_of([_points(self.lines(entry, kind), x, y) for entry in seeds])
            for objective, seeds in group.items()
        }
        return {objective: curve for objective, curve in found.items() if curve is not None}


def curve_of(seeds: Sequence[Sequence[tuple[float, float]]]) -> Curve | None:
    """Merge the (x, y) points of several seeds into a curve; None if there are no points.

    >>> curve = curve_of([[(1, 2.0), (2, 4.0)], [(1, 4.0), (2, 8.0)]])
    >>> curve.mean.tolist(), curve.low.tolist(), curve.high.tolist()
    ([3.0, 6.0], [2.0, 4.0], [4.0, 8.0])
    """
    at: dict[float, list[float]] = {}
    for x, y in (point for seed in seeds for point in seed):
        at.setdefault(x, []).append(y)
    if not at:
        return None
    parts = np.array_split(np.array(sorted(at)), min(len(at), MOST_POINTS))
    columns = [(part.mean(), *_mean_and_range([at[x] for x in part.tolist()])) for part in parts]
    return Curve(*np.array(columns, dtype=np.float64).T)


def _mean_and_range(values: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Average, over neighbouring points, the seeds' mean, minimum and maximum."""
    of_points = [(float(np.mean(v)), float(np.min(v)), float(np.max(v))) for v in values]
    mean, low, high = np.mean(of_points, axis=0).tolist()
    return mean, low, high


def _points(lines: Sequence[Line], x: Read, y: Read) -> list[tuple[float, float]]:
    found = ((x(line), y(line)) for line in lines)
    return [(a, b) for a, b in found if a is not None and b is not None]


def _lines(entry: Entry) -> list[Line]:
    """Read a run's metrics; none if the file is missing or broken, which the sections then say."""
    try:
        return list(entry.run.metrics())
    except (OSError, ValueError):
        return []
