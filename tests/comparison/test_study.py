"""What came out of a study: the points of every model and objective for themselves."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, stdev

import pytest
from PIL import Image

from gradspace.comparison.grid import Cell
from gradspace.comparison.study import StudyPoint, point_label
from gradspace.comparison.study_picture import save_study_picture
from gradspace.comparison.tried import best_points, tried_points
from gradspace.runs.recipe import Recipe

KEYS = ("objective.margin", "objective.base")
POINTS: list[StudyPoint] = [
    tuple(zip(KEYS, (margin, base), strict=True)) for margin in (0.2, 0.4) for base in (0.5, 0.7)
]


def made_up(models: tuple[str, ...], points: list[StudyPoint] = POINTS) -> list[Cell]:
    return [
        Cell("scenes", model, f"a, b {point_label(point)}", seed, Recipe(), point)
        for seed in (0, 1)
        for model in models
        for point in points
    ]


def rsum(cell: Cell) -> float:
    """Every run has one of its own."""
    margin, base = (value for _, value in cell.point)
    return float(100 * margin + 10 * base + cell.seed + 50 * (cell.model == "wide"))


def test_models_are_not_mixed(tmp_path: Path) -> None:
    cells = made_up(("narrow", "wide"))
    tried = tried_points(cells, rsum)
    assert [(one.search[1], one.point) for one in tried] == [
        (model, point) for model in ("narrow", "wide") for point in POINTS
    ]
    for one in tried:
        own = [rsum(c) for c in cells if (c.model, c.point) == (one.search[1], one.point)]
        assert one.search == ("scenes", one.search[1], "a, b")
        assert (one.mean, one.std) == pytest.approx((fmean(own), stdev(own)))
        assert one.is_whole
    assert [one.search[1] for one in best_points(tried)] == ["wide", "narrow"]
    assert {one.point for one in best_points(tried)} == {POINTS[-1]}
    narrow = [one for one in tried if one.search[1] == "narrow"]
    widths = []
    for name, points in (("both.png", tried), ("one.png", narrow)):
        with Image.open(save_study_picture(tmp_path / name, points, "Maps")) as picture:
            widths.append(picture.width)
    assert widths[0] > 1.7 * widths[1], "a map for each"


def test_objectives_with_parameters_of_their_own_have_plots(tmp_path: Path) -> None:
    """Seven parameters are more than fit beside each other."""
    wide: StudyPoint = tuple((f"objective.{name}", 0.5) for name in "abcdefg")
    cells = [
        *(Cell("scenes", "m", f"x {point_label(p)}", 0, Recipe(), p) for p in POINTS[:2]),
        Cell("scenes", "m", f"y {point_label(wide)}", 0, Recipe(), wide),
    ]
    tried = tried_points(cells, lambda cell: 1.0)
    with Image.open(save_study_picture(tmp_path / "plots.png", tried, "Plots")) as picture:
        assert picture.height > 0.3 * picture.width, "two rows"


def test_what_has_not_come_out_and_what_collapsed() -> None:
    """A collapse is the worst value there is, and an objective of nothing else has no best."""
    values = {0: 0.0, 1: 0.0, 2: None, 3: 5.0}
    cells = made_up(("m",))
    tried = tried_points(cells, lambda cell: values[POINTS.index(cell.point)])
    assert [one.is_whole for one in tried] == [True, True, False, True]
    assert [one.point for one in best_points(tried)] == [POINTS[3]]
    assert best_points(tried[:3]) == []
