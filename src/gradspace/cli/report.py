"""`gradspace report`: everything known about runs, on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradspace.cli.options import Device
from gradspace.cli.shared import console, progress_bar
from gradspace.comparison.compare import find_out, gather
from gradspace.files import check_out_file
from gradspace.processes import choose_device
from gradspace.report import write_report
from gradspace.wording import typed


def add_to(app: typer.Typer) -> None:
    app.command("report")(report)


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Folders of comparisons, or of single runs."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The HTML file; report.html in a comparison's folder by default."),
    ] = None,
    device: Device = None,
) -> None:
    """Write one HTML page: tables, verdicts, curves, contributions, diagrams, examples."""
    path = out or (runs[0] if len(runs) == 1 else Path()) / "report.html"
    check_out_file(path)
    chosen = choose_device(device)
    view, entries = gather(runs, chosen)
    with progress_bar("writing the report") as progress:
        write_report(
            path, view.title, entries, find_out(view, entries), device=chosen, progress=progress
        )
    console.print(f"wrote {typed(path)}", markup=False, highlight=False, soft_wrap=True)
