"""`gradspace export`: a run for others, as a folder or on the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradspace.cli.shared import console
from gradspace.runs.export import export_run, push_folder
from gradspace.runs.folder import open_run
from gradspace.wording import typed


def add_to(app: typer.Typer) -> None:
    app.command("export")(export)


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    out: Annotated[
        Path, typer.Option(help="Folder to write, with weights, words and a model card.")
    ],
    licence: Annotated[
        str | None, typer.Option("--license", help="Licence of the weights, such as apache-2.0.")
    ] = None,
    push: Annotated[
        str | None, typer.Option(help="Also upload it to the Hugging Face hub, as OWNER/NAME.")
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Push to a private repository.")
    ] = False,
) -> None:
    """Write a run as a folder for others: a fine-tuned CLIP or SigLIP for plain transformers."""
    if private and push is None:
        raise ValueError("--private goes with --push OWNER/NAME")
    export_run(run, out, licence)
    load = "AutoModel.from_pretrained" if open_run(run).recipe().model.pretrained else "gs.load"
    _tell(f"wrote {typed(out)}: {load}({str(out)!r}) loads it")
    if push is not None:
        _tell(f"pushed to {push_folder(out, push, private=private)}")


def _tell(sentence: str) -> None:
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)
