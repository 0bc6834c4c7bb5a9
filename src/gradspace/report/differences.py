"""Differences of every objective to the best, as the rows of a forest plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradspace.analysis.significance import LEVEL, Difference
from gradspace.comparison.tables import Tests
from gradspace.runs.numbers import ARROWS


@dataclass(frozen=True)
class Behind:
    """Difference of an objective to the best, with its interval."""

    objective: str
    mean: float
    low: float
    high: float
    corrected: float

    @property
    def told_apart(self) -> bool:
        return self.corrected < LEVEL

    @property
    def p_text(self) -> str:
        return "p < 0.001" if self.corrected < 0.001 else f"p = {self.corrected:.3f}"


@dataclass(frozen=True)
class Forest:
    """Forest plot of one dataset and model, by one metric."""

    metric: str
    best: str
    best_mean: float
    rows: list[Behind]
    """Objectives other than the best, closest first."""
    ticks: list[tuple[float, str]]

    def place(self, value: float) -> float:
        """Position of a value in percent of the plot's width."""
        first, last = self.ticks[0][0], self.ticks[-1][0]
        return round(100 * (value - first) / (last - first), 2)

    @property
    def sentence(self) -> str:
        """Sentence on the best objective and how many differ significantly from it."""
        apart, others = sum(row.told_apart for row in self.rows), len(self.rows)
        lead = f"{self.best} has the highest mean {self.metric} ({self.best_mean:.1f})"
        if others == 1:
            return f"{lead}; the other objective can{'' if apart else 'not'} be told apart from it."
        many = {0: "none of the", others: "all"}.get(apart, f"{apart} of the {others}")
        return f"{lead}; {many} others can be told apart from it."


def main_metric(tests: Tests, dataset: str, model: str) -> str | None:
    """Choose rsum if it was tested, else the first metric that was."""
    tested = [metric for d, m, metric in tests if (d, m) == (dataset, model)]
    return "rsum" if "rsum" in tested else next(iter(tested), None)


def make_forest(tests: Tests, dataset: str, model: str) -> Forest | None:
    """Build the forest plot's data; None if nothing was tested."""
    metric = main_metric(tests, dataset, model)
    if metric is None:
        return None
    results, differences = tests[dataset, model, metric]
    means = {name: float(np.mean(values)) for name, values in results.items()}
    best = max(means, key=lambda name: means[name])
    rows = sorted(_behind(best, differences), key=lambda row: -row.mean)
    way, _, rest = metric.partition(" ")
    name = f"{rest} {ARROWS[way]}" if way in ARROWS else metric
    return Forest(name, best, means[best], rows, _ticks(rows))


def _behind(best: str, differences: Sequence[Difference]) -> list[Behind]:
    found = []
    for d in differences:
        if d.first == best:
            found.append(Behind(d.second, -d.mean, -d.high, -d.low, d.corrected))
        elif d.second == best:
            found.append(Behind(d.first, d.mean, d.low, d.high, d.corrected))
    return found


def _ticks(rows: Sequence[Behind]) -> list[tuple[float, str]]:
    """Choose round ticks whose range includes all intervals and zero."""
    from matplotlib.ticker import MaxNLocator

    low = min([0.0, *(row.low for row in rows)])
    high = max([0.0, *(row.high for row in rows)])
    if low == high:
        low, high = -1.0, 1.0
    values = MaxNLocator(4, steps=[1, 2, 5, 10]).tick_values(low, high)
    return [(float(value), f"{value:g}".replace("-", "\N{MINUS SIGN}")) for value in values]
