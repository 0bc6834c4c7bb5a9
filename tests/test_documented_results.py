"""The tables of docs/explanation/results.md follow from the results of the runs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev

import pytest

from gradspace.comparison.results import load_table
from gradspace.runs.numbers import ARROWS, COCOS

ROOT = Path(__file__).parent.parent
TITLE = re.compile(r"\*\*(?P<model>[^,*]+), (?P<dataset>[^,*]+), (?P<seeds>\d+ seeds|one seed)\*\*")
CELL = re.compile(r"(?P<mean>-?\d+\.(?P<decimals>\d+)) ± (?P<std>\d+\.\d+)")
CELL_OF_ONE = re.compile(r"(?P<mean>-?\d+\.(?P<decimals>\d+))(?P<std>)(?! ±)")
GRID_COLUMN = re.compile(r"(?P<metric>rsum|.* R@\d+) (?P<triplet_weight>.+)")
Key = tuple[str, str, str, str]
"""Dataset, model, objective, metric."""


def shown() -> Iterator[tuple[Key, int, re.Match[str]]]:
    """Every cell of a table of runs, with its number of seeds."""
    title = header = None
    for line in (ROOT / "docs/explanation/results.md").read_text().splitlines():
        if line.startswith(("**", "#")):
            title = TITLE.match(line)
        if not line.startswith("| "):
            header = None
        elif header is None:
            header = cells_of(line)
        elif title and (cells := cells_of(line))[1:]:
            for name, cell in zip(header[1:], cells[1:], strict=True):
                seeds = title["seeds"].removesuffix(" seeds").replace("one seed", "1")
                if found := (CELL_OF_ONE if seeds == "1" else CELL).search(cell):
                    objective, metric = labels(header[0], name, cells[0])
                    key = (title["dataset"], title["model"], objective, metric)
                    yield key, int(seeds), found


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip()[1:-1].split("|")]


def labels(corner: str, column: str, row: str) -> tuple[str, str]:
    """Objective and metric of a cell; a grid has the triplet weights at the end of its columns."""
    for way, arrow in ARROWS.items():
        column = column.replace(arrow, way)
    if corner == "objective":
        return row, column
    found = GRID_COLUMN.fullmatch(column)
    assert found, column
    return f"{found['triplet_weight']}/{row}", found["metric"]


def measured() -> dict[Key, list[tuple[float, float | None]]]:
    """Value and deviation over batches, by seed."""
    values: dict[Key, dict[int, tuple[float, float | None]]] = defaultdict(dict)
    for path in sorted((ROOT / "results").glob("*/results.parquet")):
        for row in load_table(path):
            key = (row.dataset, row.model, row.objective, row.metric)
            values[key][row.seed] = row.value, row.std
    return {key: [of[seed] for seed in sorted(of)] for key, of in values.items()}


def test_the_readme_repeats_what_the_page_says() -> None:
    page = (ROOT / "docs/explanation/results.md").read_text()
    cells = [cell.group() for cell in CELL.finditer((ROOT / "README.md").read_text())]
    assert len(cells) == 5
    assert [cell for cell in cells if cell not in page] == []


def test_documented_tables_follow_from_the_results() -> None:
    results, cells = measured(), list(shown())
    assert len(cells) > 100
    for key, num_seeds, cell in cells:
        found = results[key][:num_seeds]
        assert len(found) == num_seeds, key
        values = [value for value, _ in found]
        half = 0.5001 * 10.0 ** -len(cell["decimals"])
        assert float(cell["mean"]) == pytest.approx(mean(values), abs=half), key
        if key[-1] in COCOS:
            over_batches = mean(std for _, std in found if std is not None)
            assert float(cell["std"]) == pytest.approx(over_batches, abs=half), key
        elif cell["std"]:
            assert float(cell["std"]) == pytest.approx(stdev(values), abs=half), key
