"""Learning curves, and COCOS during training.

A few objectives share a plot. If there are many, each gets its own plot, with the range of all in
the background.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gradspace.comparison.entries import Group
from gradspace.report.history import Curve, History, Line
from gradspace.report.looks import Look, ink
from gradspace.report.svg import Drawer, Plot, PlotRow
from gradspace.runs.numbers import ARROWS, DIRECTIONS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOGETHER = 6
"""Largest number of objectives that share a plot."""
COUNTS = {"per_query": "C^q", "queries_without": "C^0", "effective": "C_eff"}

Curves = Mapping[str, Curve]
Looks = Mapping[str, Look]


def learning_rows(drawer: Drawer, history: History, group: Group, looks: Looks) -> list[PlotRow]:
    """Draw dev rsum, and R@1 in both directions, by epoch."""
    found = {"rsum": history.curves(group, "epoch", _epoch, _dev_rsum)}
    for way, direction in DIRECTIONS.items():
        read = partial(_dev_recall, direction=direction)
        found[f"R@1 {ARROWS[way]}"] = history.curves(group, "epoch", _epoch, read)
    return _rows(drawer, found, looks, "epoch", "on dev")


def count_rows(drawer: Drawer, history: History, group: Group, looks: Looks) -> list[PlotRow]:
    """Draw C^q, C^0 and C_eff by step; for many objectives, as the mean of both directions."""
    ways: dict[str, tuple[str, ...]] = {ARROWS[way]: (d,) for way, d in DIRECTIONS.items()}
    if len(group) > TOGETHER:
        ways = {"mean of both directions": tuple(DIRECTIONS.values())}
    found = {
        f"{symbol}, {words}": history.curves(
            group, "step", _step, partial(_count, directions=directions, count=count)
        )
        for words, directions in ways.items()
        for count, symbol in COUNTS.items()
    }
    return _rows(drawer, found, looks, "step", "during training")


def _rows(
    drawer: Drawer, found: Mapping[str, Curves], looks: Looks, x: str, where: str
) -> list[PlotRow]:
    found = {name: curves for name, curves in found.items() if curves}
    if not found:
        return []
    if max(len(curves) for curves in found.values()) <= TOGETHER:
        plots = [_shared(drawer, n, curves, looks, x, where) for n, curves in found.items()]
        together = tuple(dict.fromkeys(name for curves in found.values() for name in curves))
        return [PlotRow("", plots, objectives=together)]
    return [
        PlotRow(name, _one_each(drawer, name, curves, looks, x, where), opened=number == 0)
        for number, (name, curves) in enumerate(found.items())
    ]


def _shared(drawer: Drawer, name: str, curves: Curves, looks: Looks, x: str, where: str) -> Plot:
    with drawer.axes() as axes:
        for objective, curve in curves.items():
            _draw(axes, curve, looks[objective])
        _finish(axes, curves, x)
        return Plot(name, drawer.svg(axes, f"{name} {where}, by {x}. {_ends(curves)}"))


def _one_each(
    drawer: Drawer, name: str, curves: Curves, looks: Looks, x: str, where: str
) -> list[Plot]:
    plots = []
    for objective, curve in curves.items():
        with drawer.axes() as axes:
            _draw_range(axes, curves)
            _draw(axes, curve, looks[objective])
            _finish(axes, curves, x)
            place = 1 + sum(float(other.mean[-1] > curve.mean[-1]) for other in curves.values())
            description = (
                f"{name} {where} of {objective}, by {x}: it ends at {curve.mean[-1]:.1f}, "
                f"number {place:.0f} from the top of {len(curves)}."
            )
            plots.append(Plot(objective, drawer.svg(axes, description), objective))
    return plots


def _draw(axes: Axes, curve: Curve, look: Look) -> None:
    colour = ink(look.role)
    numbers = [float(part) for part in look.dashes.split()]
    every = max(1, len(curve.x) // 8)
    # The markers start at different points, so that curves on top of each other can be seen.
    axes.plot(
        curve.x,
        curve.mean,
        color=colour,
        linestyle=(0, [n / 2 for n in numbers]) if numbers else "-",
        marker=look.marker,
        markersize=4.5,
        markeredgewidth=0,
        markevery=(look.number % every, every),
    )
    if (curve.high > curve.low).any():
        axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.16, linewidth=0)


def _draw_range(axes: Axes, curves: Curves) -> None:
    """Draw, in grey, the range from the lowest to the highest of all curves."""
    x = np.unique(np.concatenate([curve.x for curve in curves.values()]))
    means = [np.interp(x, c.x, c.mean, left=np.nan, right=np.nan) for c in curves.values()]
    low, high = np.nanmin(means, axis=0), np.nanmax(means, axis=0)
    axes.fill_between(x, low, high, color=ink("shade"), alpha=0.22, linewidth=0)


def _finish(axes: Axes, curves: Curves, x: str) -> None:
    """Set the same limits in all plots of the same curves, and integer ticks on the x axis."""
    from matplotlib.ticker import MaxNLocator

    highest = max(float(curve.high.max()) for curve in curves.values())
    first = min(float(curve.x[0]) for curve in curves.values())
    last = max(float(curve.x[-1]) for curve in curves.values())
    axes.set(xlabel=x, ylim=(0, 1.06 * highest or 1))
    pad = 0.02 * (last - first) or 0.5
    axes.set_xlim(first - pad, last + pad)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    if last >= 10_000:
        axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value else "0")
    axes.yaxis.set_major_locator(MaxNLocator(5))


def _ends(curves: Curves) -> str:
    ends = sorted(curves, key=lambda objective: -float(curves[objective].mean[-1]))
    told = [f"{objective} {curves[objective].mean[-1]:.1f}" for objective in ends]
    return f"At the end, from the highest: {', '.join(told)}."


def _epoch(line: Line) -> float | None:
    return float(line["epoch"]) + 1


def _step(line: Line) -> float | None:
    return float(line["step"])


def _dev_rsum(line: Line) -> float | None:
    dev = line.get("dev")
    return float(dev["rsum"]) if dev else None


def _dev_recall(line: Line, direction: str) -> float | None:
    dev = line.get("dev")
    return float(dev[direction]["recall"]["1"]) if dev else None


def _count(line: Line, directions: Sequence[str], count: str) -> float | None:
    counts = [line.get(direction) for direction in directions]
    values = [float(found[count]) for found in counts if found]
    return sum(values) / len(values) if values else None
