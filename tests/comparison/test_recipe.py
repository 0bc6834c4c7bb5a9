"""Comparison recipes: what they may say, and what is said when they are wrong."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest

from gradspace.comparison.grid import Cell, cells, on_data, with_first_rounds
from gradspace.comparison.needs import find_needs
from gradspace.comparison.recipe import lay_over, load_comparison
from gradspace.comparison.study import AxisValues, Range, Study, point_label
from gradspace.runs.recipe import Recipe

SMALL = """
title = "Small"
seeds = 2
[recipe.training]
epochs = 4
[datasets.scenes]
regions = { source = "scenes", num_train = 64 }
[datasets.photos]
images = { source = "photos" }
[models."VSE++"]
reads = "regions"
model = { name = "vse++", width = 32 }
[models.deep]
reads = "images"
model = { name = "vse++", backbone = "microsoft/resnet-50" }
finetune = { epochs = 2 }
[objectives.triplet]
[objectives.wide]
objective = { name = "triplet", margin = 0.4 }
training = { batch_size = 16 }
[[exceptions]]
model = "VSE++"
objective = "wide"
training = { epochs = 9 }
"""


def write(folder: Path, text: str, name: str = "small.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_cell_is_all_its_parts_laid_over_each_other(tmp_path: Path) -> None:
    comparison, root = load_comparison(write(tmp_path, SMALL))
    assert root == tmp_path / "small.toml"
    grid = cells(comparison, "small.toml")
    assert [cell.labels for cell in grid] == [
        (dataset, model, objective, seed)
        for seed in (0, 1)
        for dataset, model in (("scenes", "VSE++"), ("photos", "deep"))
        for objective in ("triplet", "wide")
    ]
    plain, wide, deep, _ = (cell.recipe for cell in grid[:4])
    assert plain.training.epochs == deep.training.epochs == 4
    assert (wide.training.epochs, wide.training.batch_size) == (9, 16)
    assert wide.objective.parameters == {"margin": 0.4}
    assert plain.data.parameters == {"num_train": 64}
    assert deep.finetune is not None
    assert deep.finetune.epochs == 2
    assert grid[-1].recipe.seed == 1
    assert len({cell.folder(tmp_path) for cell in grid}) == len(grid)


def test_exceptions_concern_any_table_and_second_rounds(tmp_path: Path) -> None:
    more = """
[objectives.again]
after = "triplet"
objective = { name = "triplet-hard" }
[[exceptions]]
model = "VSE++"
after = "triplet"
training = { epochs = 7 }
[[exceptions]]
dataset = "photos"
recipe = { model = { width = 64 } }
"""
    grid = cells(load_comparison(write(tmp_path, SMALL + more))[0], "small.toml")
    epochs = {cell.labels[1:3]: cell.recipe.training.epochs for cell in grid}
    assert epochs["VSE++", "again"] == 7
    assert epochs["VSE++", "triplet"] == epochs["deep", "again"] == 4
    wider = {cell.dataset: cell.recipe.model.parameters.get("width") for cell in grid}
    assert wider == {"scenes": 32, "photos": 64}


def test_a_recipe_extends_another_and_shares_its_runs(tmp_path: Path) -> None:
    write(tmp_path, SMALL)
    more = 'extends = "small.toml"\ntitle = "Part"\nonly = { objective = ["wide"] }\n'
    comparison, root = load_comparison(write(tmp_path, more, "part.toml"))
    assert root == tmp_path / "small.toml"
    assert comparison.title == "Part"
    assert {cell.objective for cell in cells(comparison, "part.toml")} == {"wide"}


def test_a_model_goes_on_from_another(tmp_path: Path) -> None:
    """Features first, then the pixels of the same dataset."""
    both = SMALL.replace(
        'images = { source = "photos" }',
        """
images = { source = "photos" }
regions = { source = "photos", features = "f.npy" }
""",
    )
    after = both.replace(
        'reads = "images"', 'reads = "images"\nafter = "VSE++"\ntraining = { epochs = 0 }'
    )
    comparison, _ = load_comparison(write(tmp_path, after))
    grid = cells(comparison.part(["dataset=photos", "model=deep", "objective=wide"]), "steps")
    first = grid[0].first
    assert first is not None
    assert first.labels == ("photos", "VSE++", "wide", 0)
    assert first.recipe.training.epochs == 9
    assert grid[0].recipe_in(tmp_path).init == tmp_path / "photos/VSE++/wide/seed-0"
    assert [c.model for c in with_first_rounds(grid)] == ["VSE++", "deep"] * 2
    needs = {need.what for need in find_needs(comparison, grid)}
    assert needs == {"photos", "f.npy", "microsoft/resnet-50"}
    elsewhere = cells(on_data(comparison, "scenes")[0], "scenes")
    assert [c.model for c in elsewhere[:3]] == ["VSE++", "VSE++", "deep"]
    assert all(c.first is None and c.recipe.finetune is None for c in elsewhere)
    wrong = after.replace('after = "VSE++"', 'after = "VSE"')
    with pytest.raises(ValueError, match=r"models.deep.after names 'VSE'; did you mean 'VSE"):
        load_comparison(write(tmp_path, wrong))
    third = '[models.deeper]\nreads = "images"\nafter = "deep"\n'
    with pytest.raises(ValueError, match=r"models.deeper comes after a second step: only one may"):
        load_comparison(write(tmp_path, after + third))
    second = '[objectives.second]\nafter = "triplet"\nobjective = { name = "offline-triplet" }\n'
    comparison, _ = load_comparison(write(tmp_path, after + second))
    with pytest.raises(ValueError, match=r"second comes after triplet and deep after VSE\+\+: a"):
        cells(comparison.part(["model=deep"]), "both")


def test_a_part_of_the_grid_by_the_command_line(tmp_path: Path) -> None:
    comparison, _ = load_comparison(write(tmp_path, SMALL))
    part = comparison.part(["model=deep", "objective=wide"])
    assert {cell.labels[1:3] for cell in cells(part, "part")} == {("deep", "wide")}
    with pytest.raises(ValueError, match="--only model names 'VSE'; did you mean 'VSE"):
        comparison.part(["model=VSE"])
    part = comparison.part(["seed=1", "objective=wide"])
    assert {cell.labels[2:] for cell in cells(part, "part")} == {("wide", 1)}
    assert {cell.seed for cell in cells(on_data(part, "scenes")[0], "part")} == {1}
    with pytest.raises(ValueError, match="no run is left of part: see `only` and --only"):
        cells(comparison.part(["dataset=scenes", "model=deep"]), "part")
    with pytest.raises(ValueError, match="--only seed names '2'; there are 0, 1"):
        comparison.part(["seed=2"])
    with pytest.raises(ValueError, match="with an axis of dataset, model, objective, seed, got"):
        comparison.part(["width=1"])


def test_a_second_round_comes_after_a_first(tmp_path: Path) -> None:
    more = """
[objectives.second]
after = "triplet"
objective = { name = "offline-triplet" }
offline = { skip = 5 }
"""
    comparison, _ = load_comparison(write(tmp_path, SMALL + more))
    grid = cells(comparison.part(["objective=second", "model=VSE++"]), "rounds")
    assert [cell.objective for cell in grid] == ["second", "second"]
    first = grid[0].first
    assert first is not None
    assert (first.objective, first.seed, first.recipe.offline) == ("triplet", 0, None)
    assert grid[0].recipe.offline is not None
    assert grid[0].recipe.offline.skip == 5
    every = with_first_rounds(grid)
    assert [cell.objective for cell in every] == ["triplet", "second"] * 2
    going_on = more.replace("after =", "continues = true\nafter =")
    comparison, _ = load_comparison(write(tmp_path, SMALL + going_on))
    [cell, *_] = cells(comparison.part(["objective=second", "model=VSE++"]), "rounds", small=True)
    assert cell.recipe_in(tmp_path).init == tmp_path / "scenes/VSE++/triplet/seed-0"
    assert cell.recipe.objective.warm_up is None, "it is past its start"
    with pytest.raises(ValueError, match="continues needs after"):
        load_comparison(write(tmp_path, SMALL + going_on.replace('after = "triplet"', "")))
    third = more + '[objectives.third]\nafter = "second"\n'
    with pytest.raises(ValueError, match="third comes after a second round"):
        load_comparison(write(tmp_path, SMALL + third))
    wrong = more.replace('after = "triplet"', 'after = "tripplet"')
    with pytest.raises(ValueError, match=r"second.after names 'tripplet'"):
        load_comparison(write(tmp_path, SMALL + wrong))


def test_the_same_grid_on_the_data_at_hand(tmp_path: Path) -> None:
    comparison, _ = load_comparison(write(tmp_path, SMALL))
    here, notes = on_data(comparison, "scenes")
    grid = cells(here, "small.toml", small=True, overrides=["training.clip=1.0"])
    assert {cell.dataset for cell in grid} == {"scenes"}
    assert all(cell.recipe.model.backbone is None for cell in grid)
    assert all(cell.recipe.training.clip == 1.0 for cell in grid)
    assert {cell.recipe.training.epochs for cell in grid if cell.objective == "triplet"} == {1}
    assert {cell.recipe.training.batch_size for cell in grid} == {32, 4}
    assert notes == ["deep runs without its pretrained microsoft/resnet-50"]
    alike = SMALL.replace('model = { name = "vse++", width = 32 }', 'model = { name = "vse++" }')
    here, notes = on_data(load_comparison(write(tmp_path, alike))[0], "scenes")
    assert list(here.models) == ["VSE++"]
    assert "deep is the same as VSE++ here, and is left out" in notes


def test_tables_are_laid_over_without_changing_them() -> None:
    below = {"a": {"b": 1, "c": [2]}, "d": 3}
    assert lay_over(below, {"a": {"b": 5}, "e": {}}) == {"a": {"b": 5, "c": [2]}, "d": 3, "e": {}}
    assert below == {"a": {"b": 1, "c": [2]}, "d": 3}


RATES = 'parameters = { "training.learning_rate" = { low = 1e-4, high = 1e-2 } }'
STUDIES = [
    (RATES, "a range of values need sample, the number of points"),
    (f"{RATES}\ntrials = 9", "trials needs sample, the number of points to start with"),
    (f"{RATES}\nsample = 9\ntrials = 4", "trials is 4 and sample 9: trials counts all points"),
    ("sample = 4", "sample and trials need parameters, and there are none"),
    (RATES.replace("low", "lo"), "unknown key parameters.training.learning_rate.lo; did you mean"),
    (f"{RATES}\nsample = 9".replace("1e-2", "1e-5"), "a range needs low below high"),
    (f"{RATES}\nsample = 9".replace("1e-2", "inf"), "high should be a finite number"),
    (
        'parameters = { "training.clip" = 1 }',
        "clip should be a list of values, or a range",
    ),
    ('parameters = { "model.name" = ["vsrn"] }', "parameters.model.name: models go by their names"),
    (
        'parameters = { "objective.temperature" = [0.1] }',
        "triplet temperature=0.1: triplet has no parameter 'temperature'; it takes margin",
    ),
]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        *(("seeds = 2", f"seeds = 2\n{study}", message) for study, message in STUDIES),
        ("seeds = 2", "seeds = 0", "seeds should be greater than 0"),
        ("seeds = 2", "sedes = 2", "unknown key sedes; did you mean 'seeds'"),
        ("[objectives.triplet]", "[objectives.tripplet]", "unknown objective 'tripplet'"),
        ('name = "vse++", width', 'name = "vse", width', "unknown model 'vse'"),
        ("epochs = 4", "epoch = 4", "unknown key training.epoch"),
        ('reads = "images"', 'reads = "pixels"', "models.deep reads 'pixels', which no dataset"),
        ('objective = "wide"', 'objective = "wild"', "exceptions.objective names 'wild'"),
        ('objective = "wide"', 'after = "wild"', "exceptions.after names 'wild'"),
        ("seeds = 2", 'metrics = ["R@1"]', "unknown metric 'R@1'"),
        ("seeds = 2", 'only = { model = ["VSE"] }', "only.model names 'VSE'"),
        ("seeds = 2", "seeds = 2\nonly = { seed = [2] }", "only.seed names '2'; there are 0, 1"),
        ("seeds = 2", "parameters = { a = [] }", "parameters.a"),
        (
            "seeds = 2",
            'cocos = { convention = "paper" }',
            "cocos.convention should be 'gradient' or",
        ),
        ("seeds = 2", "cocos = { epsilon = -1.0 }", "cocos.epsilon should be greater than"),
        ("[objectives.wide]", "[objectives.wide", "is not a valid TOML file"),
        ("seeds = 2", 'extends = "small.toml"', "extends itself"),
        ("seeds = 2", 'extends = "gone.toml"', "does not exist: expected a recipe"),
    ],
)
def test_mistakes_are_one_sentence(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in SMALL
    path = write(tmp_path, SMALL.replace(old, new, 1))
    with pytest.raises(ValueError, match=message) as caught:
        cells(load_comparison(path)[0], str(path))
    assert "small.toml" in str(caught.value) or "gone.toml" in str(caught.value)


def test_two_runs_never_share_a_folder(tmp_path: Path) -> None:
    two = '[objectives."a/b"]\nobjective = { name = "triplet" }\n[objectives."a b"]\n'
    path = write(tmp_path, SMALL + two + 'objective = { name = "nt-xent" }\n')
    with pytest.raises(ValueError, match=r"the same folder.*a/b, seed 0\).*a b, seed 0\)"):
        cells(load_comparison(path)[0], str(path))


# --- studies ------------------------------------------------------------------------------------


def test_a_study_is_a_product_of_values_or_a_sample_of_it() -> None:
    lists: dict[str, AxisValues] = {"objective.a": [1, 2, 3], "objective.b": [True, False]}
    points = Study(lists).start()
    assert len(points) == 6
    assert points[1] == (("objective.a", 1), ("objective.b", False))
    some = Study(lists, sample=4).start()
    assert len(set(some)) == 4
    assert some == Study(lists, sample=4).start(), "the same points every time"
    assert set(some) <= set(points)
    assert Study(lists, sample=9).start() == points
    assert Study({}).start() == [()]


def test_a_sample_fills_its_ranges_evenly() -> None:
    wide, narrow = Range(low=0.001, high=10, log=True), Range(low=-1, high=1)
    ranges: dict[str, AxisValues] = {"a": wide, "b": narrow, "c": ["x", "y"]}
    points = [dict(point) for point in Study(ranges, sample=16).start()]
    places = {
        "a": [(math.log10(p["a"]) + 3) / 4 for p in points],
        "b": [(p["b"] + 1) / 2 for p in points],
        "c": ["xy".index(p["c"]) / 2 for p in points],
    }
    for key, bins in (("a", 16), ("b", 16), ("c", 2)):
        counts = Counter(int(place * bins) for place in places[key])
        assert set(counts.values()) == {16 // bins}, f"as many points in every part of {key}"
    pairs = Counter((int(4 * a), int(4 * b)) for a, b in zip(places["a"], places["b"], strict=True))
    assert set(pairs.values()) == {1}, "and of the plane"
    assert Study(ranges, sample=8).start() == Study(ranges, sample=16).start()[:8]


def test_a_study_is_judged_on_dev(tmp_path: Path) -> None:
    text = SMALL + '[parameters]\n"objective.margin" = [0.1, 0.3]\n'
    comparison, _ = load_comparison(write(tmp_path, text))
    assert comparison.split == "dev"
    grid = cells(comparison, "study")
    margins = {cell.objective: cell.recipe.objective.parameters["margin"] for cell in grid}
    assert margins == {f"{n} margin={m}": m for n in ("triplet", "wide") for m in (0.1, 0.3)}


def test_points_of_many_parameters_have_folders_of_their_own(tmp_path: Path) -> None:
    """File systems take names of 255 bytes."""
    keys = [f"objective.parameter_number_{number}" for number in range(12)]
    points = [tuple((key, value) for key in keys) for value in (0.123, 0.124)]
    grid = [Cell("d", "m", f"smooth {point_label(p)}", 0, Recipe(), p) for p in points]
    folders = [cell.folder(tmp_path) for cell in grid]
    assert folders[0] != folders[1]
    for folder in folders:
        folder.mkdir(parents=True)
    assert grid[0].search == ("d", "m", "smooth")
