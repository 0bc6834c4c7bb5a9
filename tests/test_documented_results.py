"""The tables of the pages of results follow from the results of the runs."""

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
PAGES = [ROOT / "docs/explanation" / name for name in ("results.md", "results-rsicd.md")]
TITLE = re.compile(
    r"\*\*(?P<model>[^,*]+), (?P<dataset>[^,*]+), (?P<seeds>(\d+ to )?\d+ seeds|one seed)\*\*"
)
CELL = re.compile(r"(?P<mean>-?\d+\.(?P<decimals>\d+)) ± (?P<std>\d+\.\d+)")
CELL_OF_ONE = re.compile(r"(?P<mean>-?\d+\.(?P<decimals>\d+))(?P<std>)(?! ±)")
DIFFERENCES = "**Trained by text minus not, VSE++, RSICD**"
SIGNED = re.compile(r"(?P<mean>[+-]\d+\.\d)( ± (?P<std>\d+\.\d))?")
GRID_COLUMN = re.compile(r"(?P<metric>rsum|.* R@\d+) (?P<triplet_weight>.+)")
Key = tuple[str, str, str, str]
"""Dataset, model, objective, metric."""


def shown() -> Iterator[tuple[Key, int, re.Match[str]]]:
    """Every cell of a table of runs, with its number of seeds, which may have a column."""
    for title, header, cells in rows():
        if found := TITLE.match(title):
            of_page = found["seeds"].removesuffix(" seeds").replace("one seed", "1")
            seeds = int(cells[1] if header[1] == "seeds" else of_page)
            for name, cell in zip(header[1:], cells[1:], strict=True):
                if number := (CELL_OF_ONE if seeds == 1 else CELL).search(cell):
                    objective, metric = labels(header[0], name, cells[0])
                    yield (found["dataset"], found["model"], objective, metric), seeds, number


def rows() -> Iterator[tuple[str, list[str], list[str]]]:
    """Every row of a table, with the title and the header above it."""
    for page in PAGES:
        title, header = "", None
        for line in page.read_text().splitlines():
            if line.startswith(("**", "#")):
                title = line
            if not line.startswith("| "):
                header = None
            elif header is None:
                header = cells_of(line)
            elif (cells := cells_of(line))[1:] and cells[0] != "---":
                yield title, header, cells


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip()[1:-1].split("|")]


def labels(corner: str, column: str, row: str) -> tuple[str, str]:
    """Objective and metric of a cell; a grid has the triplet weights at the end of its columns."""
    column = metric_of(column)
    if corner == "objective":
        return row, column
    found = GRID_COLUMN.fullmatch(column)
    assert found, column
    return f"{found['triplet_weight']}/{row}", found["metric"]


def metric_of(column: str) -> str:
    for way, arrow in ARROWS.items():
        column = column.replace(arrow, way)
    return column


def measured() -> dict[Key, dict[int, tuple[float, float | None]]]:
    """Value and deviation over batches, by seed."""
    values: dict[Key, dict[int, tuple[float, float | None]]] = defaultdict(dict)
    for path in sorted((ROOT / "results").glob("*/results.parquet")):
        for row in load_table(path):
            key = (row.dataset, row.model, row.objective, row.metric)
            values[key][row.seed] = row.value, row.std
    return {key: {seed: of[seed] for seed in sorted(of)} for key, of in values.items()}


def test_the_readme_repeats_what_the_page_says() -> None:
    page = (ROOT / "docs/explanation/results.md").read_text()
    cells = [cell.group() for cell in CELL.finditer((ROOT / "README.md").read_text())]
    assert len(cells) == 5
    assert [cell for cell in cells if cell not in page] == []


def test_documented_tables_follow_from_the_results() -> None:
    results, cells = measured(), list(shown())
    assert len(cells) > 100
    for key, num_seeds, cell in cells:
        found = list(results[key].values())[:num_seeds]
        assert len(found) == num_seeds, key
        values = [value for value, _ in found]
        half = 0.5001 * 10.0 ** -len(cell["decimals"])
        assert float(cell["mean"]) == pytest.approx(mean(values), abs=half), key
        if key[-1] in COCOS:
            over_batches = mean(std for _, std in found if std is not None)
            assert float(cell["std"]) == pytest.approx(over_batches, abs=half), key
        elif cell["std"]:
            assert float(cell["std"]) == pytest.approx(stdev(values), abs=half), key


def test_rows_with_a_number_of_seeds_show_all_of_them() -> None:
    results, num_rows = measured(), 0
    for title, header, cells in rows():
        found = TITLE.match(title)
        if found and header[1] == "seeds":
            key = (found["dataset"], found["model"], cells[0], "rsum")
            assert int(cells[1]) == len(results[key]), key
            num_rows += 1
    assert num_rows == 12


def test_differences_by_text_follow_from_the_results() -> None:
    results, num_cells = measured(), 0
    for title, header, cells in rows():
        if title != DIFFERENCES:
            continue
        seeds = [int(seed) for seed in cells[1].split(", ")]
        for column, cell in zip(header[2:], cells[2:], strict=True):
            key, by_text = (
                ("RSICD", "VSE++", name, metric_of(column))
                for name in (cells[0], f"{cells[0]} by text")
            )
            if not (found := SIGNED.fullmatch(cell)):
                continue
            assert results[key].keys() & results[by_text].keys() == set(seeds), key
            changes = [results[by_text][seed][0] - results[key][seed][0] for seed in seeds]
            assert float(found["mean"]) == pytest.approx(mean(changes), abs=0.05001), key
            if found["std"]:
                assert float(found["std"]) == pytest.approx(stdev(changes), abs=0.05001), key
            assert bool(found["std"]) == (len(seeds) > 1), key
            num_cells += 1
    assert num_cells == 24
