"""The whole chain from a comparison recipe to its report: `gs.compare`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape

from gradspace.comparison.best_recipe import save_best_recipes
from gradspace.comparison.builtin import find_comparison
from gradspace.comparison.compare import Compared, Findings, find_out, run_cells, save_findings
from gradspace.comparison.entries import Entry
from gradspace.comparison.grid import MAX_SMALL_SEEDS, SMALL, Cell, CellMaker, cells, on_data
from gradspace.comparison.needs import check_needs
from gradspace.comparison.published import load_published
from gradspace.comparison.recipe import Comparison, load_comparison
from gradspace.comparison.study_picture import save_study_picture
from gradspace.comparison.tables import View
from gradspace.comparison.tried import Tried, best_points
from gradspace.comparison.tuning import Tuner
from gradspace.comparison.varied import check_overrides, leave_out_doubles
from gradspace.data.dataset import Dataset
from gradspace.data.feature_files import FeatureFile
from gradspace.files import check_out_folder
from gradspace.models.features import extract_features
from gradspace.processes import choose_device
from gradspace.progress import Show, silently
from gradspace.report.write import write_report
from gradspace.runs.data import open_recipe
from gradspace.runs.recipe import load_recipe
from gradspace.runs.recipe_tables import DataRecipe
from gradspace.wording import counted, typed


@dataclass(frozen=True)
class ComparisonPlan:
    """A comparison with all choices resolved, before anything is trained."""

    comparison: Comparison
    name: str
    """Stem of its files' names."""
    folder: Path
    grid: list[Cell]
    source: str = ""
    """Built-in name or path by which the user gave it."""
    published: Path | None = None
    notes: list[str] = field(default_factory=list)
    """Differences from the recipe, in words."""
    tuner: Tuner | None = None
    """Adds points to the grid while it runs."""

    @property
    def num_runs(self) -> int:
        return self.tuner.num_runs(self.grid) if self.tuner else len(self.grid)


@dataclass(frozen=True)
class ComparisonReport:
    """A finished comparison: its runs, the findings, and the files that were written."""

    runs: Compared
    findings: Findings
    best: list[Tried]
    """Best point of every objective of a study, the best of them first."""
    paths: list[Path]
    best_recipes: list[Path]
    """Recipes that read those points on test, one for each dataset and model."""

    def to_dict(self) -> dict[str, Any]:
        differences = [
            {"dataset": dataset, "model": model, "metric": metric, **vars(difference)}
            for (dataset, model, metric), (_, found) in self.findings.tests.items()
            for difference in found
        ]
        failed = [{"run": str(cell), "problem": problem} for cell, problem in self.runs.failed]
        return {
            "results": [vars(row) for entry in self.runs.entries for row in entry.rows()],
            "differences": differences,
            "verdicts": self.findings.verdicts,
            "failed": failed,
            "stopped": self.runs.stopped,
            "best": [
                {
                    **dict(zip(("dataset", "model", "objective"), one.search, strict=True)),
                    "parameters": dict(one.point),
                    "mean": one.mean,
                    "std": one.std,
                }
                for one in self.best
            ],
        }


def compare(
    recipe: str | Path,
    data: str | None = None,
    *,
    small: bool | None = None,
    backbone: str | None = None,
    only: Sequence[str] = (),
    seeds: int | None = None,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    jobs: int | None = None,
    device: str | None = None,
    console: Console | None = None,
    show: Show = silently,
) -> ComparisonReport:
    """Train every cell of a grid, test the differences, and write tables and a report.

    Finished runs are kept; calling it again does only what is missing.

    Args:
        recipe: a TOML file, or the name of a built-in comparison (`gradspace compare --list`).
        data: data to run the same grid on instead, such as "scenes".
        small: use narrow models and few epochs, minutes on two cores; the default on scenes.
        backbone: vision model that computes features, once, for data without any.
        only: parts of the grid to run, such as "model=VSRN" or "seed=0".
        seeds: number of runs per cell of the table.
        overrides: "table.key=value" changes to every run.
        out: folder of the comparison; comparisons/RECIPE by default.
        jobs: number of runs at a time; by default, as many as fit.
        console: where to show the runs; nowhere by default.

    Examples:
        >>> compare("icr-table1", "scenes").findings.verdicts  # doctest: +SKIP
    """
    plan = make_plan(
        recipe,
        data,
        small=small,
        only=only,
        seeds=seeds,
        overrides=overrides,
        out=Path(out) if out else None,
        features=FeatureSource(backbone, device, show),
    )
    return run_plan(plan, jobs=jobs, device=device, console=console, show=show)


@dataclass(frozen=True)
class FeatureSource:
    """Settings for computing features of data that has only images."""

    backbone: str | None
    device: str | None
    show: Show


def make_plan(
    recipe: str | Path,
    data: str | None = None,
    *,
    small: bool | None = None,
    only: Sequence[str] = (),
    seeds: int | None = None,
    overrides: Sequence[str] = (),
    out: Path | None = None,
    features: FeatureSource | None = None,
) -> ComparisonPlan:
    """Resolve a comparison into its grid, computing missing features if `features` is given."""
    path = find_comparison(recipe)
    chosen, root = load_comparison(path)
    if data is None and features is not None and features.backbone is not None:
        raise ValueError(
            "--backbone computes features for --data, which was not given: add --data, or leave "
            "out --backbone"
        )
    small = data == "scenes" if small is None else small
    if small:
        seeds = seeds or min(chosen.seeds, MAX_SMALL_SEEDS)
    chosen = chosen.model_copy(update={"seeds": seeds or chosen.seeds}).part(only)
    folder = out or default_folder(root, data)
    _check_out(folder)
    changes, notes = list(overrides), list[str]()
    if data is not None:
        chosen, notes = on_data(chosen, data)
    check_overrides(chosen, str(recipe), overrides, small=small)
    if data is not None:
        of_data = [change for change in changes if change.startswith("data.")]
        own = load_recipe(overrides=of_data).data.model_copy(update={"source": data})
        if features is not None and own.features is None:
            more, drawn = _read_features(own, folder, features)
            changes += more
            notes += drawn
    notes += ([SMALL] if small else []) + changes
    grid, doubles = leave_out_doubles(cells(chosen, str(recipe), overrides=changes, small=small))
    notes += doubles
    published = Path(chosen.published) if chosen.published else None
    tuner = None
    if chosen.trials and chosen.is_study:
        tuner = Tuner(CellMaker(chosen, str(recipe), tuple(changes), small))
        tuner.check(grid)
    return ComparisonPlan(chosen, path.stem, folder, grid, str(recipe), published, notes, tuner)


def run_plan(
    plan: ComparisonPlan,
    *,
    jobs: int | None = None,
    device: str | None = None,
    console: Console | None = None,
    show: Show = silently,
) -> ComparisonReport:
    """Train and evaluate the missing runs of a plan, then write its tables and report."""
    chosen, devices = plan.comparison, _devices(device)
    _check_out(plan.folder)
    check_needs(chosen, plan.grid, plan.source)
    published = load_published(plan.published) if plan.published else []
    view = View(chosen.title, chosen.metrics, chosen.layout, tuple(published))
    say = console or Console(quiet=True)
    told = f"{counted(plan.num_runs, 'run')} -> {escape(typed(plan.folder))}"
    say.print(f"[bold]{escape(chosen.title)}[/]: {told}", highlight=False, soft_wrap=True)
    for note in plan.notes:
        say.print(f"  {note}", style="dim", markup=False, highlight=False, soft_wrap=True)
    done = run_cells(
        chosen,
        plan.grid,
        plan.folder,
        devices=devices,
        most=jobs,
        console=say,
        tuner=plan.tuner,
    )
    best = best_points(done.tried)
    shown = done.entries_of(best) if plan.tuner else done.entries
    failed = [*done.failed, *done.collapsed]
    if not shown and done.stopped and not failed:
        raise KeyboardInterrupt("stopped before a run was done; the same command resumes")
    if not shown:
        cell, problem = failed[0]
        raise ValueError(f"every run failed; the first was {cell}: {problem}")
    findings = find_out(view, shown)
    paths = save_findings(plan.folder, done.entries, findings, plan.name)
    if best:
        picture = plan.folder / f"{plan.name}.png"
        log = chosen.logarithmic
        paths.append(save_study_picture(picture, done.tried, chosen.title, logarithmic=log))
    best_recipes = []
    if not (done.stopped or done.failed):
        study = find_comparison(plan.source)
        best_recipes = save_best_recipes(plan.folder, study, chosen, best)
    paths.append(_write(plan, done, findings, shown, devices[0], show))
    return ComparisonReport(done, findings, best, [*paths, *best_recipes], best_recipes)


def _check_out(folder: Path) -> None:
    if not (folder / "runs").is_dir():
        check_out_folder(folder, "a comparison", ("features",))


def _write(
    plan: ComparisonPlan,
    done: Compared,
    findings: Findings,
    shown: Sequence[Entry],
    device: torch.device,
    show: Show,
) -> Path:
    path = plan.folder / f"{plan.name}.html"
    with show("writing the report") as progress:
        write_report(
            path,
            findings.title,
            shown,
            findings,
            notes=plan.notes,
            failed=[f"{c}: {problem}" for c, problem in (*done.failed, *done.collapsed)],
            device=device,
            progress=progress,
        )
    return path


def default_folder(root: Path, data: str | None) -> Path:
    """Default folder, comparisons/RECIPE; recipes that extend another share its runs."""
    return Path("comparisons") / (f"{root.stem}-{Path(data).name}" if data else root.stem)


def _devices(name: str | None) -> list[torch.device]:
    """Devices to run on: all GPUs, the one given, or the CPU."""
    device = choose_device(name)
    if device.type == "cuda" and device.index is None:
        return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    return [device]


def _read_features(
    data: DataRecipe, folder: Path, wanted: FeatureSource
) -> tuple[list[str], list[str]]:
    """Find or compute the features of images; return the change that makes runs read them.

    Without a backbone, an .npy file next to the captions must have a row for every image. Also
    return a note on the sizes of the splits, if these were drawn by default.
    """
    with wanted.show("reading data") as progress:
        dataset = open_recipe(data, progress)
    drawn = [dataset.description] if dataset.drawn else []
    return _features_of(dataset, data, folder, wanted), drawn


def _features_of(
    dataset: Dataset, data: DataRecipe, folder: Path, wanted: FeatureSource
) -> list[str]:
    if all(split.features or split.passages for split in dataset.splits.values()):
        return []
    if wanted.backbone is None:
        num_images = sum(len(split.image_names) for split in dataset.splits.values())
        return [f"data.features={_features_beside(Path(data.source), num_images)}"]
    out = folder / "features"
    with wanted.show(f"computing features with {wanted.backbone}") as progress:
        extract_features(
            dataset,
            wanted.backbone,
            out,
            grid=True,
            batch_size=32,
            num_workers=os.cpu_count() or 1,
            device=choose_device(wanted.device),
            progress=progress,
        )
    return [f"data.features={out}"]


def _features_beside(data: Path, num_images: int) -> Path:
    files = sorted((data if data.is_dir() else data.parent).glob("*.npy"))
    found = [path for path in files if len(FeatureFile(path)) == num_images]
    if len(found) != 1:
        raise ValueError(
            f"{data} has images but no features: give --backbone, a vision model to compute them "
            "with, or --set data.features=FILE"
        )
    return found[0]
