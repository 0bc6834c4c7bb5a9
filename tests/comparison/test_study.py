"""What came out of a study: the points of every model and objective for themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from comparison.made_up import entry
from PIL import Image

from gradspace.comparison.study import StudyPoint, save_heat_map, tried_points

KEYS = ("objective.margin", "objective.base")
POINTS: dict[str, StudyPoint] = {
    f"a, b margin={margin} base={base}": tuple(zip(KEYS, (margin, base), strict=True))
    for margin in (0.2, 0.4)
    for base in (0.5, 0.7)
}


def test_models_are_not_mixed(tmp_path: Path) -> None:
    entries = [
        replace(entry(label, seed + 2 * (model == "wide")), model=model, seed=seed)
        for model in ("narrow", "wide")
        for label in POINTS
        for seed in (0, 1)
    ]
    tried = tried_points(entries, POINTS)
    assert len(tried) == 8
    assert [one.mean for one in tried] == sorted((one.mean for one in tried), reverse=True)
    for one in tried:
        label = next(label for label, point in POINTS.items() if point == one.point)
        own = [e for e in entries if (e.model, e.objective) == (one.model, label)]
        first, second = (e.value("rsum") for e in own)
        assert one.objective == "a, b"
        assert one.mean == pytest.approx((first + second) / 2)
        assert one.std == pytest.approx(abs(first - second) / 2**0.5)
        assert one.run == own[0].run
    narrow = [one for one in tried if one.model == "narrow"]
    widths = []
    for name, points in (("both.png", tried), ("one.png", narrow)):
        with Image.open(save_heat_map(tmp_path / name, points, "Maps")) as picture:
            widths.append(picture.width)
    assert widths[0] > 1.7 * widths[1], "a map for each"
