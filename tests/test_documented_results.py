"""The tables of docs/results.md follow from the results of the runs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev

import pytest

from gradspace.comparison.metrics import ARROWS
from gradspace.comparison.results import load_table

ROOT = Path(__file__).parent.parent
TITLE = re.compile(r"\*\*(?P<model>[^,*]+), (?P<dataset>[^,*]+), (?P<seeds>\d+) seeds\*\*")
CELL = re.compile(r"(?P<mean>-?\d+\.(?P<decimals>\d+)) ± (?P<std>\d+\.\d+)")
Key = tuple[str, str, str, str]
"""Dataset, model, objective, metric."""


def shown() -> Iterator[tuple[Key, int, re.Match[str]]]:
    """Every cell of the page with a mean and a standard deviation, and its number of seeds."""
    title = header = None
    for line in (ROOT / "docs/results.md").read_text().splitlines():
        title = TITLE.match(line) or title
        if not line.startswith("| "):
            header = None
        elif header is None:
            header = line.strip("| ").split(" | ")
        elif title and (cells := line.strip("| ").split(" | "))[1:]:
            for name, cell in zip(header[1:], cells[1:], strict=True):
                if found := CELL.search(cell):
                    objective, metric = labels(header[0], name, cells[0])
                    key = (title["dataset"], title["model"], objective, metric)
                    yield key, int(title["seeds"]), found


def labels(corner: str, column: str, row: str) -> tuple[str, str]:
    """Objective and metric of a cell; a grid has the triplet weights at the end of its columns."""
    for way, arrow in ARROWS.items():
        column = column.replace(arrow, way)
    if corner == "objective":
        return row, column
    metric, _, triplet_weight = column.rpartition(" ")
    return f"{triplet_weight}/{row}", metric


def measured() -> dict[Key, list[float]]:
    """By seed."""
    values: dict[Key, dict[int, float]] = defaultdict(dict)
    for path in sorted((ROOT / "results").glob("*/results.parquet")):
        for row in load_table(path):
            values[row.dataset, row.model, row.objective, row.metric][row.seed] = row.value
    return {key: [of[seed] for seed in sorted(of)] for key, of in values.items()}


def test_the_readme_repeats_what_the_page_says() -> None:
    page = (ROOT / "docs/results.md").read_text()
    cells = [cell.group() for cell in CELL.finditer((ROOT / "README.md").read_text())]
    assert len(cells) >= 12
    assert [cell for cell in cells if cell not in page] == []


def test_documented_tables_follow_from_the_results() -> None:
    results, cells = measured(), list(shown())
    assert len(cells) > 100
    for key, num_seeds, cell in cells:
        values = results[key][:num_seeds]
        assert len(values) == num_seeds, key
        half = 0.5001 * 10.0 ** -len(cell["decimals"])
        assert float(cell["mean"]) == pytest.approx(mean(values), abs=half), key
        assert float(cell["std"]) == pytest.approx(stdev(values), abs=half), key
