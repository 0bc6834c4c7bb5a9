"""Studies: which values of an objective's parameters are best, chosen on dev.

    [parameters]
    "objective.margin" = [0.1, 0.2, 0.3]
    "objective.scale" = { low = 2, high = 50, log = true }
    sample = 20                                             # beside the title

Lists alone are a grid, all points of which are run; `sample` takes so many of them by lot. A range
needs `sample`: each point has a value from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import exp, log
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from gradspace.analysis.diagrams import STYLE
from gradspace.comparison.entries import Entry
from gradspace.files import write_atomically
from gradspace.runs.folder import Run
from gradspace.runs.recipe_tables import RecipeTable

StudyPoint = tuple[tuple[str, Any], ...]
"""Key of the training recipe and its value, for every parameter of a study."""


class Range(RecipeTable):
    """Numbers to draw from, evenly or, with `log`, evenly in their logarithm."""

    low: float
    high: float
    log: bool = False

    @model_validator(mode="after")
    def _is_a_range(self) -> Range:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError("a range goes from low to a larger high, with log above zero")
        return self

    def draw(self, rng: np.random.Generator) -> float:
        if not self.log:
            value = rng.uniform(self.low, self.high)
        else:
            value = exp(rng.uniform(log(self.low), log(self.high)))
        return float(f"{value:.3g}")


AxisValues = Annotated[list[Any], Field(min_length=1)] | Range


def study_points(parameters: Mapping[str, AxisValues], sample: int | None) -> list[StudyPoint]:
    """All points, or some by lot, the same ones every time; one empty point without parameters."""
    lists = {key: values for key, values in parameters.items() if isinstance(values, list)}
    rng = np.random.default_rng(0)
    if len(lists) == len(parameters):
        points = [tuple(zip(lists, values, strict=True)) for values in product(*lists.values())]
        if sample is None or sample >= len(points):
            return points
        chosen = rng.choice(len(points), sample, replace=False)
        return [points[number] for number in sorted(chosen.tolist())]
    if sample is None:
        raise ValueError("parameters with a range of values need sample, the number of points")
    return [tuple((k, _draw(v, rng)) for k, v in parameters.items()) for _ in range(sample)]


def _draw(values: AxisValues, rng: np.random.Generator) -> Any:
    return values[rng.integers(len(values))] if isinstance(values, list) else values.draw(rng)


def point_label(point: StudyPoint) -> str:
    """`margin=0.2 scale=10`"""
    return " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in point)


# --- what came out ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tried:
    """A point of a study, and how well it did on dev."""

    dataset: str
    model: str
    objective: str
    point: StudyPoint
    mean: float
    std: float | None
    run: Run
    """The first of its runs."""

    @property
    def series(self) -> tuple[str, str, str]:
        return self.dataset, self.model, self.objective


def tried_points(
    entries: Sequence[Entry], points: Mapping[str, StudyPoint], metric: str = "rsum"
) -> list[Tried]:
    """Best first; `points` has the point of every label of an objective."""
    found: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in entries:
        found.setdefault((entry.dataset, entry.model, entry.objective), []).append(entry)
    tried = []
    for (dataset, model, label), seeds in found.items():
        objective = label.removesuffix(point_label(points[label])).strip()
        values = [entry.value(metric) for entry in seeds]
        std = float(np.std(values, ddof=1)) if len(values) > 1 else None
        mean, run = float(np.mean(values)), seeds[0].run
        tried.append(Tried(dataset, model, objective, points[label], mean, std, run))
    return sorted(tried, key=lambda one: -one.mean)


def save_heat_map(path: Path, tried: Sequence[Tried], title: str, metric: str = "rsum") -> Path:
    """Two parameters are the axes of a map for every model and objective.

    One, or more than two, are shown as curves of each.
    """
    import matplotlib
    from matplotlib.figure import Figure

    keys = [key for key, _ in tried[0].point]
    series = _by_series(tried)
    with matplotlib.rc_context(STYLE):
        if len(keys) == 2 and len({t.point for t in tried}) > 2:
            figure = Figure(figsize=(1 + 4.2 * len(series), 4.2), layout="constrained")
            maps = figure.subplots(1, len(series), squeeze=False)[0]
            for axes, (name, points) in zip(maps, series.items(), strict=True):
                _draw_map(axes, points, keys, metric)
                axes.set_title(name, fontsize=9)
        else:
            figure = Figure(figsize=(0.6 + 3.2 * len(keys), 3.4), layout="constrained")
            for axes, key in zip(
                figure.subplots(1, len(keys), squeeze=False)[0], keys, strict=True
            ):
                for name, points in series.items():
                    values = [(dict(t.point)[key], t.mean) for t in points]
                    axes.plot(*zip(*sorted(values), strict=True), "o", label=name)
                axes.set(xlabel=key.rpartition(".")[2], ylabel=f"{metric} on dev")
                if len(series) > 1:
                    axes.legend(fontsize=7)
        figure.suptitle(title, fontsize=10)
        with write_atomically(path, "wb") as file:
            figure.savefig(file, format=path.suffix[1:], dpi=200)
    return path


def _by_series(tried: Sequence[Tried]) -> dict[str, list[Tried]]:
    """The points of every model and objective, named by what not all of them share."""
    parts = [set(part) for part in zip(*(t.series for t in tried), strict=True)]
    found: dict[str, list[Tried]] = {}
    for one in tried:
        differs = [p for p, all_of_it in zip(one.series, parts, strict=True) if len(all_of_it) > 1]
        found.setdefault(", ".join(differs), []).append(one)
    return found


def _draw_map(axes: Any, tried: Sequence[Tried], keys: Sequence[str], metric: str) -> None:
    """Cells of a grid with their numbers; the best has a frame."""
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
        if np.isfinite(value):
            color = "black" if value > middle else "white"
            weight = "bold" if (row, column) == best else "normal"
            text = f"{value:.1f}"
            axes.text(column, row, text, ha="center", va="center", color=color, fontweight=weight)
    axes.set_xticks(range(len(xs)), [f"{x:g}" for x in xs])
    axes.set_yticks(range(len(ys)), [f"{y:g}" for y in ys])
    axes.set(xlabel=keys[0].rpartition(".")[2], ylabel=keys[1].rpartition(".")[2])
