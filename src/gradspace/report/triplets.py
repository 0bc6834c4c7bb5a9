"""Triplet diagrams: the weight an objective gives to a triplet, and where its triplets lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from gradspace.analysis.diagrams import triplet_surface
from gradspace.comparison.entries import Entry, Group
from gradspace.objectives import Objective
from gradspace.objectives.goal import Goal
from gradspace.report.history import History
from gradspace.report.looks import ink
from gradspace.report.svg import Drawer, Plot, crosses, dots
from gradspace.runs.recipe import build_objective

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIDE = 201
"""Points per row of the surface."""
MOST_EARLY, MOST_LATE = 120, 300
BLUE = (0.11, 0.42, 0.69)
"""Colour of the largest weight; smaller ones are more transparent, on light or dark paper."""

LEVELS = 48
"""Levels of opacity; more would take space without being visible."""

HIGHEST_COSINE = 1.001
"""Highest cosine, allowing for rounding; models that score pairs exceed it."""

Triplets = Sequence[Sequence[float]]
AxisLimits = tuple[float, float]


def triplet_plots(drawer: Drawer, history: History, group: Group) -> list[Plot]:
    """Draw one diagram per objective, with the triplets of its first seed."""
    first = {name: min(seeds, key=lambda entry: entry.seed) for name, seeds in group.items()}
    triplets = {name: _early_and_late(history, entry) for name, entry in first.items()}
    everything = [pair for both in triplets.values() for part in both for pair in part]
    far = sum(min(pair) < -0.5 for pair in everything)
    low = -1.0 if far > 0.01 * len(everything) else -0.5
    beyond = any(max(pair) > HIGHEST_COSINE for pair in everything)
    limits = (low, 2.0 if beyond else 1.0)
    return [
        _plot(drawer, name, build_objective(entry.run.recipe()), *triplets[name], limits)
        for name, entry in first.items()
    ]


def _early_and_late(history: History, entry: Entry) -> tuple[Triplets, Triplets]:
    early: list[Sequence[float]] = []
    for line in history.lines(entry, "step"):
        if len(early) >= MOST_EARLY:
            break
        early += line.get("triplets", [])
    return _thinned(early, MOST_EARLY), _thinned(entry.analysis.triplets, MOST_LATE)


def _thinned(triplets: Triplets, most: int) -> Triplets:
    """Thin out triplets evenly to at most `most`."""
    return triplets[:: max(1, -(-len(triplets) // most))]


def _plot(
    drawer: Drawer,
    name: str,
    objective: Objective,
    early: Triplets,
    late: Triplets,
    limits: AxisLimits,
) -> Plot:
    low, high = limits
    with drawer.axes(3.3, 3.25) as axes:
        least, most = _draw_surface(axes, objective, limits)
        arm = 0.011 * (high - low)
        crosses(axes, *_columns(early), arm, edgecolor=ink("ink"), linewidth=1, zorder=3)
        dots(axes, *_columns(late), edgecolor=ink("card"), linewidth=3.8, zorder=3)
        dots(axes, *_columns(late), edgecolor=ink("late"), linewidth=2.6, zorder=3)
        ticks = np.arange(low, high + 0.1, 0.5)
        axes.set(xlim=limits, ylim=limits, xticks=ticks, yticks=ticks)
        axes.set(xlabel="score of the positive", ylabel="score of the hardest negative")
        kind = "triplet weight T" if isinstance(objective, Goal) else "weight of the negative"
        least = least if least > most / 1000 else 0
        told = f"{kind}: {least:.2g} (pale) to {most:.2g} (blue)"
        moved = f"Its triplets start around {_centre(early)} and end around {_centre(late)}."
        svg = drawer.svg(axes, f"Triplet diagram of {name}; {told}. {moved}")
        return Plot(name, svg, name, told)


def _draw_surface(axes: Axes, objective: Objective, limits: AxisLimits) -> tuple[float, float]:
    """Draw the weights as a surface; return the smallest and the largest."""
    s = torch.linspace(*limits, SIDE, dtype=torch.float64)
    p, n = torch.meshgrid(s, s, indexing="xy")
    weight = triplet_surface(objective, p, n).numpy()
    least, most = float(weight.min()), float(weight.max())
    share = (weight - least) / ((most - least) or 1)
    opacity = 0.05 + 0.6 * np.round(share * LEVELS) / LEVELS
    pixels = np.dstack([np.full_like(share, part) for part in BLUE] + [opacity])
    axes.imshow(pixels, origin="lower", extent=(*limits, *limits), interpolation="none")
    if most > least:
        parts = (0.5,) if len(np.unique(weight)) == 2 else (0.1, 0.3, 0.5, 0.7, 0.9)
        levels = [least + (most - least) * part for part in parts]
        axes.contour(s, s, weight, levels=levels, colors=ink("ink"), linewidths=0.6, alpha=0.45)
    axes.plot(limits, limits, color=ink("ink"), linestyle=":", linewidth=0.9)
    axes.grid(visible=False)
    return least, most


def _columns(triplets: Triplets) -> tuple[list[float], list[float]]:
    return [pair[0] for pair in triplets], [pair[1] for pair in triplets]


def _centre(triplets: Triplets) -> str:
    if not triplets:
        return "an unknown place"
    positive, negative = np.median(np.asarray(triplets), axis=0)
    return f"a positive of {positive:.2f} and a negative of {negative:.2f}"
