"""`gradspace compare`: the grid of a table, trained, tested and shown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from gradspace.cli import options
from gradspace.cli.shared import console, errors, progress_bar
from gradspace.commands import command
from gradspace.comparison.builtin import list_builtin
from gradspace.comparison.needs import find_needs
from gradspace.comparison.show import show_findings
from gradspace.comparison.study import point_label
from gradspace.report.compare import (
    ComparisonPlan,
    ComparisonReport,
    FeatureSource,
    make_plan,
    run_plan,
)
from gradspace.wording import counted


def add_to(app: typer.Typer) -> None:
    app.command("compare")(compare_command)


def compare_command(
    recipe: options.ComparisonFile = None,
    data: options.OtherData = None,
    small: options.Small = None,
    backbone: options.BackboneName = None,
    only: options.OnlyOption = None,
    check: options.Check = False,
    listed: options.ListComparisons = False,
    seeds: options.SeedsOption = None,
    overrides: options.Changes = None,
    out: options.ComparisonFolder = None,
    jobs: options.JobsOption = None,
    device: options.Device = None,
    as_json: options.AsJson = False,
) -> None:
    """Make a table: train every cell, test the differences, write tables and a report.

    Finished runs are kept: started again, it does only the rest. Ctrl-C stops without loss.
    """
    if listed:
        if recipe is not None:
            raise ValueError("--list shows all built-in comparisons: leave the recipe out")
        return _print_builtin(as_json)
    if recipe is None:
        listing = command("compare", "--list")
        raise ValueError(f"expected a comparison: a TOML file, or a built-in name from `{listing}`")
    plan = make_plan(
        recipe,
        data,
        small=small,
        only=only or (),
        seeds=seeds,
        overrides=overrides or (),
        out=out,
        features=None if check else FeatureSource(backbone, device, progress_bar),
    )
    if check:
        raise typer.Exit(_print_needs(plan, as_json))
    shown = errors if as_json else console
    done = run_plan(plan, jobs=jobs, device=device, console=shown, show=progress_bar)
    if as_json:
        print(json.dumps(done.to_dict(), indent=2))
    else:
        show_findings(console, done.findings, done.runs, done.paths)
        changes = [part for change in overrides or () for part in ("--set", change)]
        _print_best(done, [*_options(data, small, backbone, out), *changes])
    raise typer.Exit(130 if done.runs.stopped else 1 if done.runs.failed else 0)


def _print_builtin(as_json: bool) -> None:
    found = list_builtin()
    if as_json:
        print(json.dumps([vars(one) for one in found], indent=2))
        return
    width = max(len(one.name) for one in found)
    for one in found:
        line = f"{one.name:<{width}}  {one.title}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _print_needs(plan: ComparisonPlan, as_json: bool) -> int:
    """Print what exists and what is missing; return 1 if files have to be added."""
    comparison, grid = plan.comparison, plan.grid
    needs = find_needs(comparison, grid)
    missing = [need for need in needs if not need.there and not need.fetched]
    if as_json:
        print(json.dumps([vars(need) for need in needs], indent=2))
        return 1 if missing else 0
    console.print(
        f"[bold]{escape(comparison.title)}[/]: {counted(plan.num_runs, 'run')}", highlight=False
    )
    for note in plan.notes:
        console.print(f"  {note}", style="dim", markup=False, highlight=False, soft_wrap=True)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for need in needs:
        download = "[yellow]from the hub[/]"
        state = "[green]there[/]" if need.there else download if need.fetched else "[red]missing[/]"
        table.add_row(state, escape(need.what), "" if need.there else escape(need.about))
    if needs:
        console.print(table)
    told = f"{len(missing)} of {len(needs)} missing" if missing else "nothing is missing"
    console.print(
        f"{told}; paths are relative to {Path.cwd()}", markup=False, highlight=False, soft_wrap=True
    )
    return 1 if missing else 0


def _options(
    data: str | None, small: bool | None, backbone: str | None, out: Path | None
) -> list[str | Path]:
    """Return the options by which another command has the same runs."""
    said: list[str | Path] = []
    for name, value in (("--data", data), ("--backbone", backbone), ("--out", out)):
        said += [] if value is None else [name, value]
    return said if small is None else [*said, "--small" if small else "--full"]


def _print_best(done: ComparisonReport, options: Sequence[str | Path]) -> None:
    """Print the best points of a study."""
    tried = Counter(one.search for one in done.runs.tried)
    for one in done.best:
        _, model, objective = one.search
        spread = "" if one.std is None else f" ± {one.std:.1f}"
        _say(
            f"best on dev: {model}, {objective} with {point_label(one.point)}, rsum "
            f"{one.mean:.1f}{spread}, of {counted(tried[one.search], 'point')}"
        )
    if done.runs.collapsed:
        _say(f"{counted(len(done.runs.collapsed), 'run')} collapsed, counted as rsum 0")
    for recipe in done.best_recipes:
        _say(f"on test, once: {command('compare', recipe, *options)}")


def _say(line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
