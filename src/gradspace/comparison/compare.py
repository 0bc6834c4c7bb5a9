"""Comparison from runs to results, tables and verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from rich.console import Console

from gradspace.analysis.cocos import Counting
from gradspace.analysis.verdicts import verdict
from gradspace.comparison.cell_runs import CellRuns
from gradspace.comparison.entries import Entry, load_entry
from gradspace.comparison.grid import Cell
from gradspace.comparison.live import LiveTable
from gradspace.comparison.recipe import Comparison
from gradspace.comparison.results import load_table, save_table
from gradspace.comparison.runner import Runner
from gradspace.comparison.tables import (
    FORMATS,
    ResultTable,
    Tests,
    View,
    make_tables,
    test_differences,
)
from gradspace.comparison.tried import Tried, tried_points
from gradspace.comparison.tuning import Tuner
from gradspace.comparison.worker import Task
from gradspace.files import check_is_folder, write_atomically
from gradspace.runs.data import open_recipe
from gradspace.runs.finish import analysis_of, evaluate_run
from gradspace.runs.folder import Run
from gradspace.runs.numbers import ARROWS, COCOS, RECALLS
from gradspace.runs.results import load_results
from gradspace.runs.system import load_system


@dataclass(frozen=True)
class Compared:
    """Outcome of a comparison."""

    entries: list[Entry]
    failed: list[tuple[Cell, str]]
    """Failed runs, with the reason."""
    stopped: bool
    """Whether the user or the machine stopped it before all runs were done."""
    collapsed: list[tuple[Cell, str]] = field(default_factory=list)
    """Runs of a study on which training gave up, which is a result for their points."""
    tried: list[Tried] = field(default_factory=list)
    """The points of a study, in the order in which they were chosen."""

    def entries_of(self, points: Sequence[Tried]) -> list[Entry]:
        """Select the entries of some points of a study."""
        wanted = {cell.labels for one in points for cell in one.cells}
        return [entry for entry in self.entries if entry.labels in wanted]


def run_cells(
    comparison: Comparison,
    cells: Sequence[Cell],
    out: Path,
    *,
    devices: Sequence[torch.device],
    most: int | None,
    console: Console,
    tuner: Tuner | None = None,
) -> Compared:
    """Train and evaluate every cell that is not finished; finished runs are kept.

    With a tuner, further cells follow, which it chooses.
    """
    runs = CellRuns(comparison, out, tuner.num_runs(cells) if tuner else len(cells))

    def more() -> list[Task]:
        tasks: list[Task] = []
        while tuner and (new := tuner.follow(runs.cells, runs.outcome)):
            tasks += runs.add(new)
        return tasks

    tasks = runs.add(cells)
    with LiveTable(console, runs) as table:
        jobs = Runner(devices, most).run(tasks, table.show, more)
    trained = list(zip(runs.missing, jobs, strict=True))
    failed = [(cell, job.problem) for cell, job in trained if job.state == "failed"]
    collapsed = []
    if comparison.is_study:  # in which a collapse is a result
        collapsed = [(cell, problem) for cell, problem in failed if runs.has_collapsed(cell)]
        failed = [(cell, problem) for cell, problem in failed if not runs.has_collapsed(cell)]
    unfinished = {cell.labels for cell, job in trained if job.state != "finished"}
    entries = []
    for cell in runs.cells:
        if cell.labels not in unfinished:
            run = runs.run(cell)
            results = run.results(comparison.split, comparison.folds)
            entries.append(load_entry(run, *cell.labels, results))
    tried = tried_points(runs.cells, runs.outcome) if comparison.is_study else []
    tried = [one for one in tried if one.values]
    stopped = any(job.state in ("stopped", "waiting") for job in jobs)
    return Compared(entries, failed, stopped, collapsed, tried)


@dataclass(frozen=True)
class Findings:
    """Findings of a comparison, ready to be shown."""

    title: str
    tables: list[ResultTable]
    verdicts: list[str]
    tests: Tests
    counts: bool = False
    """Whether the tables have COCOS."""


def find_out(view: View, entries: Sequence[Entry]) -> Findings:
    """Make tables, and verdicts in words."""
    tests = test_differences(entries, list(dict.fromkeys((*view.metrics, "rsum"))))
    verdicts = []
    for (dataset, model, metric), (results, differences) in tests.items():
        if metric == _main_metric(view, tests):
            way, _, rest = metric.partition(" ")
            name = f"{rest} {ARROWS[way]}" if way in ARROWS else metric
            verdicts.append(f"{model}, {dataset}: {verdict(results, differences, name)}")
    counts = any(metric in COCOS for metric in view.metrics)
    return Findings(view.title, make_tables(view, entries, tests), verdicts, tests, counts)


def _main_metric(view: View, tests: Tests) -> str:
    """Return rsum if the table has it, else the first metric that can be tested."""
    tested = [metric for _, _, metric in tests]
    return next(
        (m for m in ("rsum", *view.metrics) if m in view.metrics and m in tested),
        "rsum",
    )


def save_findings(out: Path, entries: Sequence[Entry], findings: Findings, stem: str) -> list[Path]:
    """Write results.parquet, and the tables in every format.

    Recipes that extend one another share a folder: results of other runs in it are kept.
    """
    results = out / "results.parquet"
    rows = [replace(r, run=str(Path(r.run).relative_to(out))) for e in entries for r in e.rows()]
    new = {(row.run, row.split) for row in rows}
    others = load_table(results) if results.exists() else []
    kept = [r for r in others if (r.run, r.split) not in new and _inside(out, r.run).is_dir()]
    save_table(results, [*kept, *rows])
    paths = [results]
    for suffix, render in FORMATS.items():
        path = out / f"{stem}.{suffix}"
        with write_atomically(path) as file:
            file.write("\n".join(render(table) for table in findings.tables))
        paths.append(path)
    return paths


# --- existing runs and comparisons --------------------------------------------------------------


def gather(
    paths: Sequence[Path], device: torch.device, counting: Counting | None = None
) -> tuple[View, list[Entry]]:
    """Collect the runs of comparisons and single runs; those without results are evaluated.

    With `counting` contributions are counted that way; the analysis in a run's folder is kept.
    """
    entries: list[Entry] = []
    for path in {path.resolve(): path for path in paths}.values():
        check_is_folder(path, "a run or a comparison")
        if (path / "results.parquet").is_file():
            rows = load_table(path / "results.parquet")
            places = {
                (r.dataset, r.model, r.objective, r.seed): r for r in rows if r.split != "train"
            }
            for labels, row in places.items():
                run = Run(_inside(path, row.run))
                entries.append(load_entry(run, *labels, run.results(row.split)))
        elif Run(path).recipe_file.is_file():
            entries.append(_entry_of_run(Run(path), device))
        else:
            raise ValueError(
                f"{path} is neither a run (a folder with recipe.toml) nor a comparison (a folder "
                "with results.parquet)"
            )
    if counting is not None:
        entries = [_counted(entry, device, counting) for entry in entries]
    entries = _told_apart(entries)
    title = " and ".join(path.resolve().name for path in paths)
    grid = len({e.objective for e in entries}) > 3 and all("/" in e.objective for e in entries)
    view = View(
        title, (*RECALLS[::3], "rsum") if grid else (*RECALLS, "rsum"), "grid" if grid else "rows"
    )
    return view, entries


def _counted(entry: Entry, device: torch.device, counting: Counting) -> Entry:
    if entry.analysis.counting == counting:
        return entry
    dataset = open_recipe(entry.run.recipe().data, run=entry.run.folder)
    system = load_system(entry.run.folder, device)
    return replace(entry, analysis=analysis_of(entry.run, dataset, system, counting))


def _inside(folder: Path, name: str) -> Path:
    """Resolve a path read from a file, which must not lead out of the file's folder."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{folder}/results.parquet names a run outside of its folder: {name}")
    return path


def _entry_of_run(run: Run, device: torch.device) -> Entry:
    recipe = run.recipe()
    if not (run.results("test").exists() and run.analysis.exists()):
        evaluate_run(run, open_recipe(recipe.data, run=run.folder), device)
    results = load_results(run.results("test"))
    labels = (results.dataset, recipe.model.name, recipe.objective.name, recipe.seed)
    return load_entry(run, *labels, run.results("test"))


def _told_apart(entries: Sequence[Entry]) -> list[Entry]:
    """Add the names of their folders to runs of equal labels that are not seeds of one recipe."""
    keys = [_key(entry) for entry in entries]
    first = dict(zip(reversed(keys), reversed(entries), strict=True))
    num_recipes = Counter(labels for labels, _ in first)
    same_seed = Counter((key[0], entry.seed) for key, entry in zip(keys, entries, strict=True))
    folders = Counter(entry.run.folder.name for entry in entries)

    def told(entry: Entry, key: tuple[str, str]) -> Entry:
        if same_seed[key[0], entry.seed] > 1:
            folder = entry.run.folder
        elif num_recipes[key[0]] > 1:
            folder = first[key].run.folder
        else:
            return entry
        name = folder.name if folders[folder.name] == 1 else folder
        return replace(entry, objective=f"{entry.objective} ({name})")

    return [told(entry, key) for entry, key in zip(entries, keys, strict=True)]


def _key(entry: Entry) -> tuple[str, str]:
    """Return labels and recipe without the seed and the paths of files that it reads."""
    files = {"data": {"source", "images", "features"}, "offline": {"lists"}}
    recipe = entry.run.recipe().model_dump_json(exclude={"seed": True, "init": True, **files})
    return f"{entry.dataset}, {entry.model}, {entry.objective}", recipe
