"""What a person sees while a comparison runs, on a wide screen and on a phone."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gradspace.comparison.cell_runs import CellRuns
from gradspace.comparison.grid import cells
from gradspace.comparison.live import LiveTable
from gradspace.comparison.recipe import Comparison
from gradspace.comparison.runner import Job
from gradspace.comparison.worker import Task

PHONE = 48
"""Letters of a terminal that is 390 pixels wide."""


def grid(seeds: int, models: tuple[str, ...] = ("VSE++",), **study: Any) -> Comparison:
    return Comparison.model_validate(
        {
            "title": "t",
            "seeds": seeds,
            "datasets": {"scenes": {"regions": {"source": "scenes"}}},
            "models": {name: {"reads": "regions", "model": {}} for name in models},
            "objectives": {"triplet": {}, "circle/sigmoid-ms": {}, "nt-xent": {}},
            **study,
        }
    )


def drawn(comparison: Comparison, width: int, to_come: int = 0) -> list[str]:
    """The table while the first run is kept, and the others are in different states."""
    of = cells(comparison, "t")
    states = ["finished", "running", "failed", "waiting"]
    jobs = [
        Job(Task(Path(), cell.recipe_in(Path()), "test", 1, None, False), states[n % 4])
        for n, cell in enumerate(of[1:])
    ]
    for number, job in enumerate(jobs):
        if job.state in ("finished", "running"):
            job.share, job.rsum = 0.5, 300.0 + number
    terminal = Console(file=io.StringIO(), width=width, force_terminal=True)
    planned = len(of) + to_come
    runs = CellRuns(comparison, Path(), planned, cells=of, kept=of[:1], missing=of[1:])
    with LiveTable(terminal, runs) as table:
        table.show(jobs)
        renderable = table._live.renderable
    paper = Console(file=io.StringIO(), width=width, record=True)
    paper.print(renderable)
    lines = paper.export_text().splitlines()
    assert max(map(len, lines)) <= width
    return lines


@pytest.mark.parametrize("width", [PHONE, 100])
def test_two_seeds_fit_a_phone(width: int) -> None:
    lines = drawn(grid(2), width)
    text = "\n".join(lines)
    assert "rsum on dev" in text
    assert "…" not in text
    assert "VSE++" not in text, "what all runs share"
    assert "scenes" not in text
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.split()}
    assert rows["triplet"] == ["kept", "failed"]
    assert rows["circle/sigmoid-ms"] == ["✓", "300", "·"]
    assert rows["nt-xent"] == ["50%", "301", "✓", "304"]


def test_many_seeds_are_summed_up_on_a_phone() -> None:
    wide, narrow = (drawn(grid(6, ("VSE++", "VSRN")), width) for width in (120, PHONE))
    assert "seed 5" in "\n".join(wide)
    text = "\n".join(narrow)
    assert "seed 5" not in text
    assert "…" not in text
    assert "VSRN" in text
    rows = [line for line in narrow if " of 6  3" in line]
    assert len(rows) == 6, "every row has its mean rsum"


def test_points_of_a_study_are_summed_up_and_those_to_come_are_counted() -> None:
    rates = {"training.learning_rate": [1e-4, 1e-3, 1e-2]}
    lines = drawn(grid(2, parameters=rates), 60, to_come=30)
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines if line.split()}
    assert "10 of 48 runs, " in lines[0], "finished and failed ones"
    assert "objective done now failed best" in " ".join(" ".join(lines).split())
    assert rows["triplet"] == "3 2 1 309"
    assert rows["circle/sigmoid-ms"] == "2 1 1 313"
    assert rows["nt-xent"] == "1 1 2 316"
