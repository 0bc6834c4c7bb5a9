"""`gradspace export`: a run as a folder for transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradspace.cli.shared import console
from gradspace.runs.export import export_run
from gradspace.wording import typed


def add_to(app: typer.Typer) -> None:
    app.command("export")(export)


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run of the model dual.")],
    out: Annotated[Path, typer.Option(help="Folder to write: weights, tokenizer, pixels.")],
) -> None:
    """Write a fine-tuned CLIP, SigLIP ... as a folder that plain transformers loads."""
    export_run(run, out)
    console.print(
        f"wrote {typed(out)}: AutoModel.from_pretrained({str(out)!r}) loads it",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
