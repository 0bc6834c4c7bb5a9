"""Points that are chosen by what came out: the same ones whatever happens on the way."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from gradspace.comparison.grid import Cell, CellMaker, cells
from gradspace.comparison.recipe import Comparison
from gradspace.comparison.study import AxisValues, Range, Study, StudyPoint, point_label
from gradspace.comparison.tuning import ROUND, Tuner, next_points
from gradspace.report.compare import make_plan

SEARCH: dict[str, Any] = {
    "title": "Search",
    "seeds": 2,
    "sample": 8,
    "trials": 21,
    "parameters": {"training.learning_rate": {"low": 1e-4, "high": 1e-1, "log": True}},
    "datasets": {"scenes": {"regions": {"source": "scenes"}}},
    "models": {"VSE++": {"reads": "regions"}},
    "objectives": {
        "triplet": {"parameters": {"objective.margin": {"low": 0.0, "high": 1.0}}},
        "nt-xent": {
            "parameters": {"training.learning_rate": [1e-3, 1e-2], "training.clip": [1, 2]}
        },
        "smooth-ap": {},
    },
}


def rsum(cell: Cell) -> float:
    """Highest at a rate of 0.005; a run collapses above 0.05; seeds differ."""
    rate = cell.recipe.training.learning_rate
    return 0.0 if rate > 0.05 else 300 - 50 * abs(math.log10(rate / 5e-3)) + cell.seed


def search(**tables: Any) -> tuple[Tuner, list[Cell]]:
    comparison = Comparison.model_validate({**SEARCH, **tables})
    return Tuner(CellMaker(comparison, "search", (), False)), cells(comparison, "search")


def run_all(tuner: Tuner, begun: Sequence[Cell], known: dict[str, float]) -> list[Cell]:
    """Rounds to the end, where results come in all at once."""
    every = list(begun)
    while new := tuner.follow(every, lambda cell: known.setdefault(str(cell), rsum(cell))):
        every += new
    return every


def labels(of: Sequence[Cell]) -> dict[str, list[str]]:
    """The runs of every objective, in the order in which they were chosen."""
    found: dict[str, list[str]] = {}
    for cell in of:
        found.setdefault(cell.search[2], []).append(str(cell))
    return found


@pytest.mark.parametrize("order", range(3))
def test_the_order_in_which_runs_finish_decides_nothing(order: int) -> None:
    """One after the other, in any order, as with any number of jobs and after any stop."""
    tuner, begun = search()
    expected = run_all(tuner, begun, {})
    lot = random.Random(order)
    every, finished = list(begun), dict[str, float]()
    while waiting := [cell for cell in every if str(cell) not in finished]:
        cell = lot.choice(waiting)
        finished[str(cell)] = rsum(cell)
        every += tuner.follow(every, lambda cell: finished.get(str(cell)))
    assert labels(every) == labels(expected)
    some = dict(lot.sample(sorted(finished.items()), len(finished) // 2))
    assert labels(run_all(tuner, begun, some)) == labels(expected), "rebuilt from what is finished"


def test_every_objective_has_the_same_budget_over_parameters_of_its_own() -> None:
    tuner, begun = search()
    every = run_all(tuner, begun, {})
    points = {
        name: list(dict.fromkeys(cell.point for cell in every if cell.search[2] == name))
        for name in SEARCH["objectives"]
    }
    assert {name: len(of) for name, of in points.items()} == {
        "triplet": 21,
        "nt-xent": 4,  # all that there are
        "smooth-ap": 21,
    }
    assert len(every) == tuner.num_runs(begun) == 2 * (21 + 4 + 21)
    assert len(set(map(str, every))) == len(every)
    keys = {name: {tuple(key for key, _ in point) for point in of} for name, of in points.items()}
    rate = "training.learning_rate"
    assert keys == {
        "triplet": {(rate, "objective.margin")},
        "nt-xent": {(rate, "training.clip")},
        "smooth-ap": {(rate,)},
    }
    assert {dict(point)[rate] for point in points["nt-xent"]} == {1e-3, 1e-2}, "its own come first"


def test_a_round_waits_for_all_seeds_of_the_points_before() -> None:
    tuner, begun = search(objectives={"triplet": {}})
    last = begun[-1]
    assert not tuner.follow(begun, lambda cell: None if cell is last else rsum(cell))
    new = tuner.follow(begun, rsum)
    assert len(new) == 2 * ROUND
    assert {cell.seed for cell in new} == {0, 1}
    last_round = run_all(tuner, begun, {})[2 * (8 + 3 * ROUND) :]
    assert len(last_round) == 2, "21 points are 8, three rounds of 4, and 1"


def test_chosen_points_are_better_than_those_of_the_start() -> None:
    tuner, begun = search(objectives={"triplet": SEARCH["objectives"]["triplet"]})
    every = run_all(tuner, begun, {})
    start, chosen = every[: len(begun)], every[len(begun) :]
    assert fmean(map(rsum, chosen)) > fmean(map(rsum, start)) + 15
    collapsed = sum(rsum(cell) == 0 for cell in chosen)
    assert collapsed <= 2, "what collapses is avoided"


def test_what_little_is_left_is_tried_once() -> None:
    study = Study({"a": [1, 2, 3], "b": ["x", "y"]}, sample=3, trials=5)
    tried = [(point, 1.0) for point in study.start()]
    found = next_points(study, tried)
    assert len({point_label(p) for p in [*found, *(point for point, _ in tried)]}) == 5


def test_values_of_any_kind_are_chosen_within_their_bounds() -> None:
    axes: dict[str, AxisValues] = {
        "steps": [[4], [6, 8]],
        "on": [False, True],
        "rate": Range(low=1e-4, high=1e-3, log=True),
        "shift": Range(low=-1, high=1),
    }
    study = Study(axes, sample=4, trials=40)
    tried: list[tuple[StudyPoint, float]] = [(point, 0.0) for point in study.start()]
    while new := next_points(study, tried):
        tried += [(point, float(dict(point)["shift"])) for point in new]
    for point, _ in tried:
        values = dict(point)
        assert values["steps"] in axes["steps"]
        assert 1e-4 <= values["rate"] <= 1e-3
        assert values["rate"] == float(f"{values['rate']:.3g}")
        assert -1 <= values["shift"] <= 1
    assert fmean(value for _, value in tried[20:]) > 0.5, "an end is found"


def test_what_would_fail_later_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "search.toml"
    text = """
title = "Search"
sample = 2
trials = 4
[datasets.scenes]
regions = { source = "scenes" }
[models."VSE++"]
reads = "regions"
[objectives.nt-xent.parameters]
"objective.temperature" = { low = 0.02, high = 0.2 }
"""
    path.write_text(text)
    assert make_plan(path).num_runs == 4 * 3
    with pytest.raises(ValueError, match=r"trials are chosen by the mean over all seeds: leave"):
        make_plan(path, only=["seed=0"])
    with pytest.raises(ValueError, match=r"temperature is a parameter of this study: change \["):
        make_plan(path, overrides=["objective.temperature=0.1"])
    path.write_text(text.replace("low = 0.02", "low = 0.0"))
    with pytest.raises(ValueError, match=r"temperature of nt-xent should be greater than 0, got 0"):
        make_plan(path)
    path.write_text(text)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ValueError, match=r"Optuna, .*pip install 'gradspace\[tune\]', or leave"):
        make_plan(path)
