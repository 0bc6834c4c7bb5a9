"""Pieces of the report against plain loops: retrieval, flips, curves, differences, colours."""

from __future__ import annotations

import base64
import io
from itertools import combinations

import numpy as np
import pytest
import torch
from comparison.made_up import random_results
from numpy.typing import NDArray
from PIL import Image

from gradspace.analysis.significance import compare_all
from gradspace.comparison.tables import Column
from gradspace.data.dataset import make_split
from gradspace.report.differences import Forest, make_forest
from gradspace.report.flips import choose_queries, outcome_of, queries_by_outcome
from gradspace.report.history import MOST_POINTS, curve_of
from gradspace.report.looks import Look, looks_of, themes
from gradspace.report.retrieval import retrieve
from gradspace.report.svg import Drawer, dots
from gradspace.report.tables import shown_columns, spans, with_symbols
from gradspace.report.thumbnails import ReportThumbnails
from gradspace.runs.numbers import SYMBOLS
from gradspace.scores.represented import Embeddings


def embeddings(num_images: int = 12, per_image: int = 3, values: int = 3) -> Embeddings:
    """Coarse vectors, so that many scores tie."""
    torch.manual_seed(0)
    images = torch.randint(0, values, (num_images, 4)).float()
    texts = torch.randint(0, values, (num_images * per_image, 4)).float()
    owner = torch.arange(num_images).repeat_interleave(per_image)
    ids = torch.arange(num_images)
    return Embeddings(images, texts, ids, owner, list(map(str, ids)), list(map(str, owner)))


@pytest.mark.parametrize("folds", [1, 3])
@pytest.mark.parametrize("way", ["i2t", "t2i"])
def test_top_five_by_a_loop(way: str, folds: int) -> None:
    found = embeddings()
    owner = found.text_ids.tolist()
    fold_size = len(found.images) // folds
    for query in range(len(found.images if way == "i2t" else found.texts)):
        image = query if way == "i2t" else owner[query]
        rows = []
        for candidate in range(len(found.texts if way == "i2t" else found.images)):
            theirs = owner[candidate] if way == "i2t" else candidate
            if theirs // fold_size != image // fold_size:
                continue
            pair = (query, candidate) if way == "i2t" else (candidate, query)
            score = float(found.images[pair[0]] @ found.texts[pair[1]])
            rows.append((-score, theirs == image, candidate))
        rows.sort()
        best = max(-score for score, right, _ in rows if right)
        result = retrieve(found, way, query, folds=folds)
        assert result.candidates == tuple(candidate for _, _, candidate in rows[:5])
        assert result.right == tuple(right for _, right, _ in rows[:5])
        ahead = sum(not right and -score >= best for score, right, _ in rows)
        assert result.rank == 1 + ahead
        assert result.is_right == result.right[0]


def test_equal_scores_are_not_called_right() -> None:
    found = embeddings(values=1)
    result = retrieve(found, "t2i", 0)
    assert result.right == (False,) * 5
    assert result.rank == len(found.images)


@pytest.mark.parametrize("way", ["i2t", "t2i"])
def test_flips_by_a_loop(way: str) -> None:
    first, second = random_results(0), random_results(1)
    counted = {"only-a": 0, "only-b": 0, "both": 0, "neither": 0}
    for a, b in zip(first.ranks[way], second.ranks[way], strict=True):
        if a == 1 and b == 1:
            counted["both"] += 1
        elif a == 1:
            counted["only-a"] += 1
        elif b == 1:
            counted["only-b"] += 1
        else:
            counted["neither"] += 1
    found = queries_by_outcome([first, second])[way]
    assert {outcome: len(queries) for outcome, queries in found.items()} == counted
    for outcome, queries in found.items():
        for query in queries:
            right = [bool(side.ranks[way][query] == 1) for side in (first, second)]
            assert outcome_of(right) == outcome
    alone = queries_by_outcome([first])[way]
    assert len(alone["right"]) == counted["both"] + counted["only-a"]
    assert sum(map(len, alone.values())) == len(first.ranks[way])


def test_chosen_queries_are_a_mix() -> None:
    many = {
        "only-a": list(range(100)),
        "only-b": list(range(100, 200)),
        "both": list(range(200, 300)),
        "neither": list(range(300, 400)),
    }
    chosen = choose_queries(many, 12)
    assert len(set(chosen)) == 12
    kinds = [sum(query in queries for query in chosen) for queries in many.values()]
    assert kinds == [4, 4, 2, 2]
    assert choose_queries(many, 12) == chosen
    few = {**many, "only-a": [7], "both": []}
    chosen = choose_queries(few, 12)
    assert len(set(chosen)) == 12
    assert 7 in chosen
    assert sorted(choose_queries({"right": [1], "wrong": [0, 2]}, 12)) == [0, 1, 2]
    assert choose_queries({"right": [], "wrong": []}, 12) == []


def test_a_long_curve_is_averaged() -> None:
    seeds = [[(float(x), float(x % 7) + seed) for x in range(1000)] for seed in (0, 2)]
    curve = curve_of(seeds)
    assert curve is not None
    assert len(curve.x) == MOST_POINTS
    assert curve.mean.mean() == pytest.approx(np.mean([y for s in seeds for _, y in s]))
    assert curve.high - curve.low == pytest.approx(np.full(MOST_POINTS, 2.0))
    assert curve_of([[], []]) is None


def test_a_seed_that_ended_early_counts_while_it_lasts() -> None:
    curve = curve_of([[(1, 1.0), (2, 3.0)], [(1, 5.0)]])
    assert curve is not None
    assert curve.mean.tolist() == [3.0, 3.0]


def forest_of(means: dict[str, float]) -> Forest:
    rng = np.random.default_rng(0)
    results = {
        name: np.where(rng.random((2, 300)) < share, 100.0, 0.0) for name, share in means.items()
    }
    forest = make_forest({("d", "m", "rsum"): (results, compare_all(results))}, "d", "m")
    assert forest is not None
    for row in forest.rows:
        assert row.mean == pytest.approx(
            results[row.objective].mean() - results[forest.best].mean()
        )
        assert row.low < row.mean < row.high
        assert 0 <= forest.place(row.low) <= forest.place(row.high) <= 100
    return forest


def test_differences_to_the_best() -> None:
    forest = forest_of({"a": 0.2, "b": 0.8, "c": 0.5})
    assert forest.best == "b"
    assert [row.objective for row in forest.rows] == ["c", "a"]
    assert forest.sentence.endswith("all others can be told apart from it.")
    assert any(value == 0 for value, _ in forest.ticks)
    equal = forest_of({"a": 0.5, "b": 0.5})
    assert equal.sentence.endswith("the other objective cannot be told apart from it.")
    assert make_forest({}, "d", "m") is None


# --- looks --------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    """WCAG 2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def contrast(first: str, second: str) -> float:
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_can_be_seen(theme: str) -> None:
    colours = themes()[theme]
    for paper in ("paper", "card", "soft"):
        for role in ("ink", "muted", "accent", "right"):
            assert contrast(colours[role], colours[paper]) >= 4.5, (role, paper)
    lines = [role for role in colours if role.startswith("objective")]
    for role in (*lines, "positive", "negative", "late"):
        assert contrast(colours[role], colours["card"]) >= 3, role


COLOUR_BLIND = {
    "protanopia": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "deuteranopia": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "tritanopia": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
}
"""What is left of linear red, green and blue (Machado, Oliveira and Fernandes, 2009)."""


def lab(colour: str, seen: NDArray[np.float64]) -> NDArray[np.float64]:
    """CIELAB of a colour, as it is seen."""
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.412, 0.358, 0.181], [0.213, 0.715, 0.072], [0.019, 0.119, 0.951]])
    x, y, z = np.cbrt(to_xyz @ np.clip(seen @ linear, 0, 1) / [0.951, 1, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("kind", COLOUR_BLIND)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_objectives_differ_for_the_colour_blind(theme: str, kind: str) -> None:
    colours = [c for role, c in themes()[theme].items() if role.startswith("objective")]
    found = [lab(colour, np.array(COLOUR_BLIND[kind])) for colour in colours]
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(found, 2)) > 12


def test_objectives_keep_apart() -> None:
    looks = looks_of(f"objective {number % 20}" for number in range(40))
    assert len(looks) == 20
    seen = {(look.role, look.marker, look.dashes) for look in looks.values()}
    assert len(seen) == 20
    for first, second in combinations((Look(number) for number in range(8)), 2):
        assert first.role != second.role
        assert first.marker != second.marker


def test_every_symbol_is_printed() -> None:
    for symbol in SYMBOLS:
        assert "<su" in with_symbols(symbol)
        assert "<su" in with_symbols(f"{symbol}, image → text")
    assert with_symbols("C^q") == "<i>C</i><sup>q</sup>"
    assert with_symbols("W-") == "<i>W</i><sub>\N{MINUS SIGN}</sub>"
    assert with_symbols("W-shaped <b>") == "W-shaped &lt;b&gt;"


def test_spans() -> None:
    columns = [Column(group, "x", 1) for group in ("a", "a", "", "b")]
    found = spans(shown_columns(columns))
    assert [(first.column.group, size) for first, size in found] == [("a", 2), ("", 1), ("b", 1)]


@pytest.mark.parametrize(
    ("columns", "narrow"),
    [
        ([("a", "R@1"), ("b", "R@1"), ("", "rsum")], [2, 0, 1]),
        ([("a", "x"), ("a", "y"), ("rsum", "x"), ("rsum", "y")], [2, 3, 0, 1]),
        ([("a", "R@1"), ("a", "R@5")], [0, 1]),
        ([("", "rsum")], [0]),
    ],
)
def test_sums_come_first_on_a_phone(columns: list[tuple[str, str]], narrow: list[int]) -> None:
    found = shown_columns([Column(group, name, 1) for group, name in columns])
    assert [each.place for each in found if each.shown != "wide"] == narrow
    assert [each.place for each in found if each.shown != "narrow"] == list(range(len(columns)))
    assert sum(size for _, size in spans(found)) == len(found)


def test_figures_do_not_share_ids_and_escape_their_words() -> None:
    drawer = Drawer()
    texts = []
    for _ in range(2):
        with drawer.axes() as axes:
            axes.plot([0, 1], [0, 1], marker="o")
            dots(axes, [0.5, 0.25], [0.5, 0.75], edgecolor="red", linewidth=2)
            texts.append(str(drawer.svg(axes, 'a < b & "c"')))
    ids = [part.split('"')[0] for text in texts for part in text.split(' id="')[1:]]
    assert ids
    assert len(ids) == len(set(ids))
    assert texts[0].count("h0") == 2
    assert 'aria-label="a &lt; b &amp; &#34;c&#34;"' in texts[0]
    assert "DejaVu" not in texts[0]


def test_a_picture_is_stored_once_and_small() -> None:
    class Photos:
        def __len__(self) -> int:
            return 1

        def load(self, index: int) -> Image.Image:
            return Image.effect_noise((1000, 500), 60).convert("RGB")

    split = make_split("test", [("photo", ["a photo"])], images=Photos())
    thumbnails = ReportThumbnails()
    keys = {thumbnails.add("data", split, 0) for _ in range(3)}
    assert keys == set(thumbnails.pictures)
    [uri] = thumbnails.pictures.values()
    image = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))
    assert image.size == (160, 80)
