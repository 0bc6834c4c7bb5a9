"""Further points of a study, chosen by the results of earlier ones.

Every objective starts from its `sample`; then an optimiser (Optuna's TPE) chooses rounds of points
from all earlier ones, until `trials` are tried. A round is a function of the results of the earlier
rounds alone: it depends neither on the order in which runs finish, nor on how many run at a time.
So an interrupted search resumes exactly, from the folders of its runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from gradspace.commands import pip_install
from gradspace.comparison.grid import Cell, CellMaker
from gradspace.comparison.study import (
    AxisValues,
    Study,
    StudyAxes,
    StudyPoint,
    point_label,
    spread_points,
)
from gradspace.comparison.tried import Outcome, Tried, tried_points

ROUND = 4
"""Number of points chosen together, and trained side by side if there is room."""
MOST_ASKED = 10
"""Number of proposals per wanted point, as the optimiser repeats itself when few are left."""


@dataclass(frozen=True)
class Tuner:
    """Adds the runs of the next points of every objective to those of a comparison."""

    make: CellMaker

    def num_runs(self, cells: Sequence[Cell]) -> int:
        """Return the total number of runs of the searches that these cells begin."""
        searched = {cell.search for cell in cells}
        given = self.make.comparison
        return given.seeds * sum(given.study(name).num_points for *_, name in searched)

    def check(self, cells: Sequence[Cell]) -> None:
        """Reject at once what later points would reveal: values out of bounds, no optimiser."""
        load_optimizer()
        for dataset, model, name in dict.fromkeys(cell.search for cell in cells):
            for point in self.make.comparison.study(name).ends():
                self.make.seeds(dataset, model, name, point)

    def follow(self, cells: Sequence[Cell], outcome: Outcome) -> list[Cell]:
        """Return the runs of the next rounds; `cells` are all runs so far, in the order of rounds.

        An objective waits for all seeds of all its points. Each dataset and model is searched
        separately.
        """
        searches: dict[tuple[str, str, str], list[Tried]] = {}
        for tried in tried_points(cells, outcome):
            searches.setdefault(tried.search, []).append(tried)
        return [
            cell
            for (dataset, model, objective), points in searches.items()
            if all(tried.is_whole for tried in points)
            for point in next_points(
                self.make.comparison.study(objective), [(one.point, one.mean) for one in points]
            )
            for cell in self.make.seeds(dataset, model, objective, point)
        ]


def next_points(study: Study, tried: Sequence[tuple[StudyPoint, float]]) -> list[StudyPoint]:
    """Choose the next round from every point so far and its value, in the order of rounds."""
    wanted = min(ROUND, study.num_points - len(tried))
    new = list(islice(_proposed(study.axes, tried, MOST_ASKED * wanted), wanted))
    known = [*(point for point, _ in tried), *new]
    return [*new, *islice(spread_points(study.axes, known), wanted - len(new))]


def _proposed(
    axes: StudyAxes, tried: Sequence[tuple[StudyPoint, float]], most: int
) -> Iterator[StudyPoint]:
    """Yield new points of the optimiser, the most promising first, from `most` proposals."""
    optuna = load_optimizer()
    space = {key: _distribution(optuna, values) for key, values in axes.items()}
    sampler = optuna.samplers.TPESampler(
        seed=len(tried), n_startup_trials=0, multivariate=True, constant_liar=True
    )
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for point, value in tried:
        known = {key: _encoded(axes[key], chosen) for key, chosen in point}
        study.add_trial(optuna.create_trial(params=known, distributions=space, value=value))
    seen = {point_label(point) for point, _ in tried}
    for _ in range(most):
        asked = study.ask(space).params
        point = tuple((key, _decoded(values, asked[key])) for key, values in axes.items())
        if point_label(point) not in seen:
            seen.add(point_label(point))
            yield point


def _distribution(optuna: Any, values: AxisValues) -> Any:
    """Describe the values to the optimiser: a range, or the indices of a list."""
    if isinstance(values, list):
        return optuna.distributions.CategoricalDistribution(range(len(values)))
    return optuna.distributions.FloatDistribution(values.low, values.high, log=values.log)


def _encoded(values: AxisValues, chosen: Any) -> Any:
    return values.index(chosen) if isinstance(values, list) else chosen


def _decoded(values: AxisValues, found: Any) -> Any:
    return values[found] if isinstance(values, list) else values.rounded(found)


def load_optimizer() -> Any:
    """Import Optuna, which is slow and comes with an extra."""
    try:
        import optuna
    except ImportError:
        raise ValueError(
            "trials are chosen by Optuna, which is not installed: "
            f"{pip_install('gradspace[tune]')}, or leave trials out and put all points into sample"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
