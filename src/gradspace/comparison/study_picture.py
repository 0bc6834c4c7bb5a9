"""The points of a study as a picture: heat maps of two parameters, or a plot of each parameter."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gradspace.analysis.diagrams import STYLE
from gradspace.comparison.tried import Tried
from gradspace.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Series = Mapping[str, Sequence[Tried]]
"""Points of every model and objective."""
COLUMNS = 5
"""Number of plots side by side."""


def save_study_picture(
    path: Path,
    tried: Sequence[Tried],
    title: str,
    metric: str = "rsum",
    logarithmic: Collection[str] = (),
) -> Path:
    """Draw heat maps if all searches are grids of the same two parameters, plots otherwise.

    `logarithmic` are keys that get a logarithmic axis.
    """
    import matplotlib

    series = _by_search(tried)
    with matplotlib.rc_context(STYLE):
        is_grid = all(_is_grid(points, tried[0]) for points in series.values())
        figure = _draw_maps(series, metric) if is_grid else _draw_plots(series, metric, logarithmic)
        figure.suptitle(title, fontsize=10)
        with write_atomically(path, "wb") as file:
            figure.savefig(file, format=path.suffix[1:], dpi=200)
    return path


def _by_search(tried: Sequence[Tried]) -> dict[str, list[Tried]]:
    """Group points by search, named by the labels that differ between searches."""
    parts = [set(part) for part in zip(*(t.search for t in tried), strict=True)]
    found: dict[str, list[Tried]] = {}
    for one in tried:
        differs = [p for p, all_of_it in zip(one.search, parts, strict=True) if len(all_of_it) > 1]
        found.setdefault(", ".join(differs), []).append(one)
    return found


def _is_grid(points: Sequence[Tried], like: Tried) -> bool:
    """Whether points are all combinations of two parameters, the same as those of `like`."""
    keys = [key for key, _ in like.point]
    if len(keys) != 2 or any([key for key, _ in one.point] != keys for one in points):
        return False
    sizes = [len({dict(one.point)[key] for one in points}) for key in keys]
    return len(points) > 2 and len(points) == sizes[0] * sizes[1]


def _draw_maps(series: Series, metric: str) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1 + 4.2 * len(series), 4.2), layout="constrained")
    maps = figure.subplots(1, len(series), squeeze=False)[0]
    for axes, (name, points) in zip(maps, series.items(), strict=True):
        _draw_map(axes, points, metric)
        axes.set_title(name, fontsize=9)
    return figure


def _draw_map(axes: Axes, tried: Sequence[Tried], metric: str) -> None:
    """Draw the cells of a grid with their numbers, the best in bold."""
    keys = [key for key, _ in tried[0].point]
    xs, ys = (sorted({dict(t.point)[key] for t in tried}) for key in keys)
    values = np.full((len(ys), len(xs)), np.nan)
    for t in tried:
        x, y = (dict(t.point)[key] for key in keys)
        values[ys.index(y), xs.index(x)] = t.mean
    image = axes.imshow(values, origin="lower", cmap="viridis", aspect="auto")
    axes.figure.colorbar(image, ax=axes, label=f"{metric} on dev")
    best = np.unravel_index(np.nanargmax(values), values.shape)
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    for (row, column), value in np.ndenumerate(values):
        color = "black" if value > middle else "white"
        weight = "bold" if (row, column) == best else "normal"
        text = f"{value:.1f}"
        axes.text(column, row, text, ha="center", va="center", color=color, fontweight=weight)
    axes.set_xticks(range(len(xs)), [f"{x:g}" for x in xs])
    axes.set_yticks(range(len(ys)), [f"{y:g}" for y in ys])
    axes.set(xlabel=keys[0].rpartition(".")[2], ylabel=keys[1].rpartition(".")[2])


def _draw_plots(series: Series, metric: str, logarithmic: Collection[str]) -> Figure:
    """Draw one plot per parameter, with the points of the objectives that have it."""
    import matplotlib
    from matplotlib.figure import Figure

    keys = list(dict.fromkeys(k for points in series.values() for k, _ in points[0].point))
    columns = min(COLUMNS, len(keys))
    rows = ceil(len(keys) / columns)
    figure = Figure(figsize=(0.6 + 3.2 * columns, 0.4 + 3 * rows), layout="constrained")
    plots = figure.subplots(rows, columns, squeeze=False).flat
    colors = matplotlib.colormaps["tab20" if len(series) > 10 else "tab10"]
    for axes in plots[len(keys) :]:
        axes.remove()
    for axes, key in zip(plots, keys, strict=False):
        found = {
            name: [(dict(t.point)[key], t.mean) for t in points]
            for name, points in series.items()
            if key in dict(points[0].point)
        }
        for number, name in enumerate(series):
            if name in found:
                values = sorted(found[name])
                axes.plot(*zip(*values, strict=True), "o", ms=3, label=name, color=colors(number))
        axes.set_xscale("log" if key in logarithmic else "linear")
        axes.set(xlabel=key.rpartition(".")[2], ylabel=f"{metric} on dev")
        if len(series) > 1:
            axes.legend(fontsize=6)
    return figure
