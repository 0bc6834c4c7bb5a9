"""Run a comparison and make everything of it: results, tables, verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from gradspace.analysis.significance import verdict
from gradspace.comparison.entries import Entry, load_entry
from gradspace.comparison.grid import Cell
from gradspace.comparison.live import LiveTable
from gradspace.comparison.metrics import ARROWS
from gradspace.comparison.published import Published
from gradspace.comparison.recipe import Comparison
from gradspace.comparison.results import save_table
from gradspace.comparison.runner import Runner
from gradspace.comparison.tables import (
    FORMATS,
    ResultTable,
    Tests,
    make_tables,
    test_differences,
)
from gradspace.comparison.worker import Task
from gradspace.files import write_atomically
from gradspace.runs import Run


@dataclass(frozen=True)
class Outcome:
    """What a comparison has come to."""

    entries: list[Entry]
    failed: list[tuple[Cell, str]]
    """Runs that came to no end, and why."""
    stopped: bool
    """By the user or the machine, before all runs were done."""


def run_cells(
    comparison: Comparison,
    cells: Sequence[Cell],
    out: Path,
    *,
    devices: Sequence[torch.device],
    most: int | None,
    console: Console,
) -> Outcome:
    """Train and evaluate every cell that is not finished; the finished ones are kept."""
    kept = [cell for cell in cells if _is_finished(cell, out, comparison)]
    missing = [cell for cell in cells if cell not in kept]
    tasks = [
        Task(cell.folder(out / "runs"), cell.recipe, comparison.split, comparison.folds)
        for cell in missing
    ]
    with LiveTable(console, cells, kept) as table:
        jobs = Runner(devices, most).run(tasks, table.show)
    failed = [(c, j.problem) for c, j in zip(missing, jobs, strict=True) if j.state == "failed"]
    finished = {c.labels for c, j in zip(missing, jobs, strict=True) if j.state == "finished"}
    entries = [
        load_entry(Run(cell.folder(out / "runs")), *cell.labels, comparison.split)
        for cell in cells
        if cell in kept or cell.labels in finished
    ]
    return Outcome(entries, failed, any(job.state in ("stopped", "waiting") for job in jobs))


def _is_finished(cell: Cell, out: Path, comparison: Comparison) -> bool:
    run = Run(cell.folder(out / "runs"))
    if not run.recipe_file.exists():
        return False
    if run.recipe() != cell.recipe:
        raise ValueError(
            f"{run.folder} was trained by another recipe than {cell} has now: delete it, or choose "
            "another --out"
        )
    return run.results(comparison.split).exists() and run.analysis.exists()


@dataclass(frozen=True)
class Findings:
    """A comparison, ready to be looked at."""

    tables: list[ResultTable]
    verdicts: list[str]
    tests: Tests


def find_out(
    comparison: Comparison, entries: Sequence[Entry], published: Sequence[Published]
) -> Findings:
    """Tables and what they say, in words."""
    tests = test_differences(entries, list(dict.fromkeys((*comparison.metrics, "rsum"))))
    verdicts = []
    for (dataset, model, metric), (results, differences) in tests.items():
        if metric == _main_metric(comparison, tests):
            way, _, rest = metric.partition(" ")
            name = f"{rest} {ARROWS[way]}" if way in ARROWS else metric
            verdicts.append(f"{model}, {dataset}: {verdict(results, differences, name)}")
    return Findings(make_tables(comparison, entries, tests, published), verdicts, tests)


def _main_metric(comparison: Comparison, tests: Tests) -> str:
    """rsum where the table has it, else the first metric that can be tested."""
    tested = [metric for _, _, metric in tests]
    return next(
        (m for m in ("rsum", *comparison.metrics) if m in comparison.metrics and m in tested),
        "rsum",
    )


def save_findings(out: Path, entries: Sequence[Entry], findings: Findings, stem: str) -> list[Path]:
    """results.parquet, and the tables in every format."""
    results = out / "results.parquet"
    save_table(results, [row for entry in entries for row in entry.rows()])
    paths = [results]
    for suffix, render in FORMATS.items():
        path = out / f"{stem}.{suffix}"
        with write_atomically(path) as file:
            file.write("\n".join(render(table) for table in findings.tables))
        paths.append(path)
    return paths
