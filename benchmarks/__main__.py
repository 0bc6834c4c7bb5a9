"""`python -m benchmarks`: run the suites, print the tables and, on request, write the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from benchmarks import evaluation, losses, mining, pairs, readers, scale, search, training
from benchmarks.case import Case, Measurement
from benchmarks.measure import measure
from benchmarks.page import machine, page
from benchmarks.processes import ROOT, run
from benchmarks.tables import Table, megabytes, seconds

SUITES = {
    "losses": losses,
    "scale": scale,
    "evaluation": evaluation,
    "mining": mining,
    "training": training,
    "pairs": pairs,
    "search": search,
    "readers": readers,
}
WIDTH = 124
"""Width of the tables, which need it even if the terminal is narrower."""
PAGE = ROOT / "docs" / "reference" / "benchmarks.md"


class Suite(StrEnum):
    losses = "losses"
    scale = "scale"
    evaluation = "evaluation"
    mining = "mining"
    training = "training"
    pairs = "pairs"
    search = "search"
    readers = "readers"


def main(
    quick: Annotated[bool, typer.Option(help="Tiny sizes: does everything work?")] = False,
    only: Annotated[Suite | None, typer.Option(help="One suite instead of all.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers.")] = None,
    write: Annotated[bool, typer.Option(help="Write docs/reference/benchmarks.md.")] = False,
) -> None:
    """Time and memory of gradspace next to its peers and to plain loops."""
    if write and (quick or only):
        raise typer.BadParameter("--write needs the whole run, without --quick and --only")
    for peer in ("faiss", "pytorch_metric_learning", "webdataset", "datasets"):
        if find_spec(peer) is None:
            raise typer.BadParameter(f"{peer} is missing: pip install -e '.[bench]'")
    console = Console(width=max(Console().width, WIDTH))
    tried = partial(measure, threads=1, most_repeats=1)
    measured: dict[Case, Measurement] = {}
    tables: list[Table] = []
    for name in [only.value] if only else SUITES:
        suite = SUITES[name]
        found = _run(console, suite.cases(quick), tried if quick else run)
        suite.check(found)
        measured |= found
        tables += suite.tables(found)
    for table in tables:
        console.print(table.for_terminal())
    if unsteady := sum(m.unsteady for m in measured.values()):
        console.print(f"{unsteady} of {len(measured)} cases were unsteady: was the machine busy?")
    if json_file:
        json_file.write_text(json.dumps(_as_json(measured), indent=1) + "\n")
    if write:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page("python -m benchmarks --write", tables))
        console.print(f"wrote {PAGE}")


def _run(
    console: Console, cases: list[Case], measured_by: Callable[[Case], Measurement]
) -> dict[Case, Measurement]:
    """Measure cases one after the other, each as `measured_by` does."""
    measured = {}
    for case in track(cases, "Measuring", console=console):
        m = measured[case] = measured_by(case)
        label = f"{case.suite}: {case.what}, {case.images} x {case.captions}, {case.who}"
        note = f" (unsteady, fastest {m.fastest:.3f} s)" if m.unsteady else ""
        console.print(f"{label}: {seconds(m)} s, {megabytes(m)} MB{note}", highlight=False)
    return measured


def _as_json(measured: dict[Case, Measurement]) -> dict[str, object]:
    cases = [{"case": asdict(case), "measured": asdict(m)} for case, m in measured.items()]
    return {"machine": machine(), "cases": cases}


if __name__ == "__main__":
    typer.run(main)
