"""`gradspace demo`: the main job on built-in data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradspace.cli.demo_run import run_demo
from gradspace.cli.shared import console


def add_to(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the runs and pictures.")] = Path("demo"),
) -> None:
    """Train four objectives on built-in data, compare them and show why they differ."""
    run_demo(out, console)
