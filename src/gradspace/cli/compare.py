"""`gradspace compare`: the grid of a table, run, tested and shown."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from gradspace.cli.shared import AsJson, Device, console, errors, open_recipe_data, progress_bar
from gradspace.comparison.compare import Findings, Outcome, find_out, run_cells, save_findings
from gradspace.comparison.grid import MAX_SMALL_SEEDS, SMALL, Cell, cells, on_data
from gradspace.comparison.needs import check_needs, find_needs
from gradspace.comparison.published import load_published
from gradspace.comparison.recipe import Comparison, load_comparison
from gradspace.comparison.show import show_findings
from gradspace.comparison.study import Tried, point_label, save_heat_map, tried_points
from gradspace.comparison.tables import View
from gradspace.data.feature_files import FeatureFile
from gradspace.models.features import extract_features
from gradspace.processes import choose_device
from gradspace.report import write_report
from gradspace.runs.recipe import DataRecipe, load_recipe


def add_to(app: typer.Typer) -> None:
    app.command("compare")(compare)


def compare(
    recipe: Annotated[Path, typer.Argument(help="A comparison, such as recipes/icr-table1.toml.")],
    data: Annotated[
        str | None, typer.Option(help='Run the same grid on this data instead, or on "scenes".')
    ] = None,
    small: Annotated[
        bool | None,
        typer.Option(
            "--small/--full",
            help="Narrow models, few epochs: minutes on two cores. The default on scenes.",
        ),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="With --data that has no features: the vision model, folder or hub name, that "
            "computes them once."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AXIS=LABEL",
            help="A part of the grid, such as model=VSRN or seed=0; repeat for more.",
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only say what is needed, and what is missing.")
    ] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs per cell of the table.")] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Change a key of every run."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the comparison; comparisons/RECIPE by default.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; as many as have room by default.")
    ] = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Make a table: train every cell, test the differences, write tables and a report.

    Finished runs are kept: started again, it does only what is missing. Ctrl-C stops without loss.
    """
    chosen, root = load_comparison(recipe)
    small = data == "scenes" if small is None else small
    if small:
        seeds = seeds or min(chosen.seeds, MAX_SMALL_SEEDS)
    chosen = chosen.model_copy(update={"seeds": seeds or chosen.seeds}).part(only or [])
    folder = out or _default_folder(root, data)
    changes, notes = list(overrides or ()), list[str]()
    if data is not None:
        chosen, notes = on_data(chosen, data)
        of_data = [change for change in changes if change.startswith("data.")]
        own = load_recipe(overrides=of_data).data.model_copy(update={"source": data})
        if not check and own.features is None:
            changes += _features(own, backbone, folder, device)
    notes += ([SMALL] if small else []) + changes
    grid = cells(chosen, str(recipe), overrides=changes, small=small)
    if check:
        raise typer.Exit(_print_needs(chosen, grid, as_json))
    check_needs(chosen, grid, str(recipe))
    published = load_published(recipe.parent / chosen.published) if chosen.published else []
    view = View(chosen.title, chosen.metrics, chosen.layout, tuple(published))
    shown, devices = errors if as_json else console, _devices(device)
    shown.print(f"[bold]{chosen.title}[/]: {len(grid)} runs -> {folder}", highlight=False)
    for note in notes:
        shown.print(f"  {note}", style="dim", highlight=False, soft_wrap=True)
    outcome = run_cells(chosen, grid, folder, devices=devices, most=jobs, console=shown)
    if not outcome.entries:
        raise ValueError(_nothing(outcome))
    findings = find_out(view, outcome.entries)
    paths = save_findings(folder, outcome.entries, findings, recipe.stem)
    tried = _tried(grid, outcome) if chosen.parameters else []
    if tried:
        paths.append(save_heat_map(folder / f"{recipe.stem}.png", tried, chosen.title))
    paths.append(_report(folder / f"{recipe.stem}.html", outcome, findings, notes, devices[0]))
    if as_json:
        print(json.dumps(_as_json(findings, outcome), indent=2))
    else:
        show_findings(console, findings, outcome, paths)
        _print_best(tried)
    raise typer.Exit(130 if outcome.stopped else 1 if outcome.failed else 0)


def _default_folder(root: Path, data: str | None) -> Path:
    """Recipes that extend another share its runs."""
    return Path("comparisons") / (f"{root.stem}-{Path(data).name}" if data else root.stem)


def _report(
    path: Path, outcome: Outcome, findings: Findings, notes: list[str], device: torch.device
) -> Path:
    failed = [f"{cell}: {problem}" for cell, problem in outcome.failed]
    with progress_bar("writing the report") as progress:
        write_report(
            path,
            findings.title,
            outcome.entries,
            findings,
            notes=notes,
            failed=failed,
            device=device,
            progress=progress,
        )
    return path


def _features(
    data: DataRecipe, backbone: str | None, folder: Path, device: str | None
) -> list[str]:
    """For images without features: the change that makes runs read those that are computed here.

    Without a backbone to compute them, an .npy beside the captions with a row for every image.
    """
    dataset = open_recipe_data(data)
    if all(split.features or split.passages for split in dataset.splits.values()):
        return []
    if backbone is None:
        num_images = sum(len(split.image_names) for split in dataset.splits.values())
        return [f"data.features={_features_beside(Path(data.source), num_images)}"]
    out = folder / "features"
    with progress_bar(f"computing features with {backbone}") as progress:
        extract_features(
            dataset,
            backbone,
            out,
            grid=True,
            batch_size=32,
            num_workers=os.cpu_count() or 1,
            device=choose_device(device),
            progress=progress,
        )
    return [f"data.features={out}"]


def _features_beside(data: Path, num_images: int) -> Path:
    files = sorted((data if data.is_dir() else data.parent).glob("*.npy"))
    found = [path for path in files if len(FeatureFile(path)) == num_images]
    if len(found) != 1:
        raise ValueError(
            f"{data} has images and no features: give --backbone, a vision model to compute them "
            "with, or --set data.features=FILE"
        )
    return found[0]


def _devices(name: str | None) -> list[torch.device]:
    """All GPUs, the one that was asked for, or the CPU."""
    device = choose_device(name)
    if device.type == "cuda" and device.index is None:
        return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    return [device]


def _print_needs(comparison: Comparison, grid: list[Cell], as_json: bool) -> int:
    """What is there and what is missing; 1 if anything has to be put somewhere."""
    needs = find_needs(comparison, grid)
    missing = [need for need in needs if not need.there and not need.fetched]
    if as_json:
        print(json.dumps([vars(need) for need in needs], indent=2))
        return 1 if missing else 0
    console.print(f"[bold]{comparison.title}[/]: {len(grid)} runs", highlight=False)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for need in needs:
        download = "[yellow]from the hub[/]"
        state = "[green]there[/]" if need.there else download if need.fetched else "[red]missing[/]"
        table.add_row(state, need.what, "" if need.there else need.about)
    console.print(table)
    told = f"{len(missing)} of {len(needs)} are missing" if missing else "nothing is missing"
    console.print(f"{told}; paths are relative to {Path.cwd()}", highlight=False, soft_wrap=True)
    return 1 if missing else 0


def _tried(grid: list[Cell], outcome: Outcome) -> list[Tried]:
    return tried_points(outcome.entries, {cell.objective: cell.point for cell in grid})


def _print_best(tried: list[Tried]) -> None:
    """What a study was made for."""
    if not tried:
        return
    best = tried[0]
    spread = "" if best.std is None else f" ± {best.std:.1f}"
    console.print(
        f"best on dev: {best.model}, {best.objective} with {point_label(best.point)}, rsum "
        f"{best.mean:.1f}{spread}; train it with gradspace train {best.run.recipe_file}",
        highlight=False,
        soft_wrap=True,
    )


def _nothing(outcome: Outcome) -> str:
    if outcome.failed:
        cell, problem = outcome.failed[0]
        return f"no run came to its end; the first that failed is {cell}: {problem}"
    return "stopped before a run was done; the same command goes on from here"


def _as_json(findings: Findings, outcome: Outcome) -> dict[str, Any]:
    differences = [
        {"dataset": dataset, "model": model, "metric": metric, **vars(difference)}
        for (dataset, model, metric), (_, found) in findings.tests.items()
        for difference in found
    ]
    return {
        "results": [vars(row) for entry in outcome.entries for row in entry.rows()],
        "differences": differences,
        "verdicts": findings.verdicts,
        "failed": [{"run": str(cell), "problem": problem} for cell, problem in outcome.failed],
        "stopped": outcome.stopped,
    }
