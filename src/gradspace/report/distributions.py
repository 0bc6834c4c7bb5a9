"""Distributions of scores at the best checkpoint, and of cross-retrieval ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradspace.comparison.entries import Group
from gradspace.report.curves import TOGETHER, Looks
from gradspace.report.looks import ink
from gradspace.report.svg import Drawer, Plot, PlotRow
from gradspace.runs.analysis import edges
from gradspace.runs.numbers import CROSS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]


# --- scores -------------------------------------------------------------------------------------


def score_plots(drawer: Drawer, group: Group) -> list[Plot]:
    """Draw histograms of positives and hardest negatives at the best checkpoints of all seeds."""
    found = {
        objective: (
            _density([entry.analysis.positives for entry in seeds]),
            _density([entry.analysis.hardest for entry in seeds]),
        )
        for objective, seeds in group.items()
    }
    if not found:
        return []
    limits = edges(len(next(iter(found.values()))[0]))
    middles = (limits[:-1] + limits[1:]) / 2
    used = np.sum([p + n for p, n in found.values()], axis=0) > 1e-3
    low, high = middles[used].min() - 0.06, middles[used].max() + 0.06
    plots = []
    for objective, (positives, hardest) in found.items():
        mean_p, mean_n = float(positives @ middles), float(hardest @ middles)
        told = f"positives {mean_p:.2f}, hardest negatives {mean_n:.2f} on average"
        with drawer.axes() as axes:
            _draw_histogram(axes, positives, "positive", "-")
            _draw_histogram(axes, hardest, "negative", "--")
            axes.set(xlabel="score", xlim=(low, high), ylabel="share of scores, %")
            axes.set_ylim(0, 106 * max(positives.max(), hardest.max()) or 1)
            description = f"Scores of {objective} at its best checkpoint: {told}."
            plots.append(Plot(objective, drawer.svg(axes, description), objective, told))
    return plots


def _density(counts: Sequence[Sequence[int]]) -> Floats:
    total = np.sum(counts, axis=0).astype(np.float64)
    return np.asarray(total / max(total.sum(), 1))


def _draw_histogram(axes: Axes, shares: Floats, role: str, line: str) -> None:
    limits = edges(len(shares))
    axes.stairs(100 * shares, limits, fill=True, color=ink(role), alpha=0.2)
    axes.stairs(100 * shares, limits, color=ink(role), linewidth=1.6, linestyle=line)


# --- cross-retrieval ranks ----------------------------------------------------------------------


def cross_rank_rows(drawer: Drawer, group: Group, looks: Looks) -> list[PlotRow]:
    """Draw the share of pairs in every interval of ranks: mean over seeds, with their range."""
    first = next(iter(group.values()))[0]
    names = [name for name in first.results.metrics if name.startswith(f"{CROSS} ")]
    shares = {
        objective: np.array([[e.results.metrics[name] for name in names] for e in seeds])
        for objective, seeds in group.items()
    }
    if not names:
        return []
    ranks = [name.removeprefix(f"{CROSS} ").replace("-", "\N{EN DASH}") for name in names]
    if len(shares) <= TOGETHER:
        plot = _bars_of_all(drawer, shares, ranks, looks)
        return [PlotRow("", [plot], objectives=tuple(shares), wide=True)]
    return [PlotRow("", _bars_one_each(drawer, shares, ranks, looks))]


def _bars_of_all(
    drawer: Drawer, shares: Mapping[str, Floats], ranks: Sequence[str], looks: Looks
) -> Plot:
    width, middles = 0.82 / len(shares), np.arange(len(ranks), dtype=np.float64)
    with drawer.axes(9.2, 3.1) as axes:
        for number, (objective, values) in enumerate(shares.items()):
            places = middles + (number - (len(shares) - 1) / 2) * width
            _draw_bars(axes, places, values, 0.9 * width, looks[objective].role)
        _finish_bars(axes, shares, ranks)
        first = [f"{name} {v.mean(0)[0]:.1f}%" for name, v in shares.items()]
        told = f"Share of pairs by cross-retrieval rank. At rank 1: {', '.join(first)}."
        return Plot("", drawer.svg(axes, told))


def _bars_one_each(
    drawer: Drawer, shares: Mapping[str, Floats], ranks: Sequence[str], looks: Looks
) -> list[Plot]:
    plots = []
    places = np.arange(len(ranks), dtype=np.float64)
    of_all = np.mean([values.mean(0) for values in shares.values()], axis=0)
    for objective, values in shares.items():
        with drawer.axes() as axes:
            _draw_bars(axes, places, values, 0.7, looks[objective].role)
            axes.plot(places, of_all, "_", color=ink("ink"), markersize=17, markeredgewidth=1.2)
            _finish_bars(axes, shares, ranks)
            axes.tick_params(axis="x", labelrotation=45, labelsize=8)
            axes.set_xlabel("")
            told = f"{values.mean(0)[0]:.1f}% at rank 1, {of_all[0]:.1f}% in the mean of all"
            svg = drawer.svg(axes, f"Share of pairs by cross-retrieval rank, {objective}: {told}.")
            plots.append(Plot(objective, svg, objective))
    return plots


def _draw_bars(axes: Axes, places: Floats, values: Floats, width: float, role: str) -> None:
    mean = values.mean(0)
    axes.bar(places, mean, width, color=ink(role), alpha=0.85)
    if len(values) > 1:
        reach = np.stack([mean - values.min(0), values.max(0) - mean])
        axes.errorbar(places, mean, reach, fmt="none", ecolor=ink("ink"), elinewidth=1, capsize=2)


def _finish_bars(axes: Axes, shares: Mapping[str, Floats], ranks: Sequence[str]) -> None:
    highest = max(float(values.max()) for values in shares.values())
    axes.set_xticks(range(len(ranks)), list(ranks))
    axes.set(ylabel="share of pairs, %", xlabel="cross-retrieval rank", ylim=(0, 1.06 * highest))
    axes.grid(axis="x", visible=False)
