"""Comparisons that come with gradspace; tests/test_package.py finds them in the wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradspace.comparison.builtin import FOLDER, find_comparison, list_builtin
from gradspace.comparison.published import load_published
from gradspace.comparison.recipe import load_comparison
from gradspace.report.compare import make_plan


def test_every_recipe_of_the_package_is_listed_with_its_title() -> None:
    found = {one.name: one.title for one in list_builtin()}
    assert len(found) == len(list(FOLDER.rglob("*.toml")))
    assert found["icr-table1"] == "ICR Table 1: four losses on VSE++ and VSRN"
    assert found["flickr8k/goal"].startswith("GOAL Tables 3 and 5 on Flickr8k")
    assert all(found.values())


def test_a_file_comes_before_a_built_in_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "icr-table1").mkdir()  # such as an --out of that name
    assert find_comparison("icr-table1") == FOLDER / "icr-table1.toml"
    (tmp_path / "icr-table2").write_text("title = 'Mine'")
    assert find_comparison("icr-table2") == Path("icr-table2")
    assert find_comparison(tmp_path) == tmp_path, "which is then said to be a folder"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("icr-table", r"no comparison icr-table, neither .* did you mean 'icr-table4'"),
        ("recipes/icr-table1.toml", r"no comparison recipes/icr-table1.toml.*mean 'icr-table1'"),
        ("xyz", "no comparison xyz, neither a file nor built in; the built-in ones are aoq-"),
    ],
)
def test_unknown_names(given: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_comparison(given)


def test_a_recipe_of_ones_own_extends_a_built_in_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('extends = "icr-table1"\nseeds = 1\nonly = { model = ["VSE++"] }\n')
    comparison, root = load_comparison(path)
    assert root == FOLDER / "icr-table1.toml"
    assert comparison.only.model == ("VSE++",)
    plan = make_plan(path)
    assert plan.published is not None
    assert len(load_published(plan.published)) == 160, "the CSV beside the recipe that names it"


def test_on_rsicd_every_objective_is_asked_both_ways() -> None:
    comparison, _ = load_comparison(find_comparison("rsicd/text"))
    chosen = comparison.only.objective
    assert chosen
    by_image = {name for name in chosen if not name.endswith(" by text")}
    assert {f"{name} by text" for name in by_image} == set(chosen) - by_image
    assert len(by_image) == 23
