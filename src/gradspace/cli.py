"""The command line: `gradspace --help`."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gradspace import __version__
from gradspace.analysis.diagrams import draw_diagrams, save_diagrams
from gradspace.analysis.score_file import SavedScores, load_scores
from gradspace.analysis.tables import cocos_json, cocos_tables, count_contributions
from gradspace.demo import OBJECTIVES, synthetic_batch
from gradspace.execution.tiles import blocks
from gradspace.metrics import retrieval_report
from gradspace.objectives import objective, objectives

app = typer.Typer(
    help="Train, compare and explain image-text retrieval models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
analyse = typer.Typer(help="What an objective does: weights, diagrams, contributing samples.")
app.add_typer(analyse, name="analyse", no_args_is_help=True)

console = Console()

ScoreFile = Annotated[
    Path, typer.Argument(help="safetensors file with scores[image, text], image_ids, text_ids.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def main() -> None:
    """Run the command line: errors are one sentence, `--debug` shows where they come from."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    try:
        app(arguments, prog_name="gradspace")
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if debug:
            traceback.print_exc()
        else:
            message = " ".join(str(error).split()) or type(error).__name__
            print(f"gradspace: {message}", file=sys.stderr)
        sys.exit(1)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    pass


@app.command()
def demo() -> None:
    """Compare objectives on a small synthetic batch: what contributes to their gradients?"""
    batch = synthetic_batch()
    console.print(
        f"A batch of {batch.scores.shape[0]} images with {batch.scores.shape[1]} captions:"
    )
    console.print(str(retrieval_report(batch.scores, batch.positives)), highlight=False)
    counts = count_contributions([objective(name) for name in OBJECTIVES], [batch], epsilon=0.01)
    console.print("\nCOCOS: samples that contribute to a query's gradient")
    console.print(*cocos_tables(counts), sep="\n")
    console.print(
        "C^q contributing negatives per query, C^B per batch, C^0 queries without any, "
        "W- and W+ weight on negatives and positives, C_eff effective number of negatives."
    )


@analyse.command("objectives")
def list_objectives(as_json: AsJson = False) -> None:
    """List every objective with its parameters and the paper it is from."""
    if as_json:
        print(json.dumps([vars(info) for info in objectives()], indent=2))
        return
    for info in objectives():
        parameters = ", ".join(f"{k}={v}" for k, v in info.parameters.items())
        console.print(f"[bold]{info.name}[/]  [dim]{info.source}[/]", highlight=False)
        console.print(f"    {info.summary}", highlight=False, markup=False)
        console.print(f"    {parameters or 'no parameters'}", style="cyan", highlight=False)


@analyse.command()
def diagram(
    names: Annotated[
        list[str], typer.Argument(metavar="OBJECTIVE...", help="For example circle/sigmoid-ms.")
    ],
    out: Annotated[Path, typer.Option(help="Where to write; .png and .pdf are added.")] = Path(
        "diagram"
    ),
    scores: Annotated[
        Path | None, typer.Option(help="Scatter the real triplets of this score file on top.")
    ] = None,
    relative: Annotated[
        float, typer.Option(help="Relative terms m+ = m- of the MS pair weights.")
    ] = 0.1,
) -> None:
    """Draw triplet weights over similarities and pair-weight curves, side by side."""
    chosen = [objective(name) for name in names]
    figure = draw_diagrams(chosen, load_scores(scores) if scores else None, relative)
    for path in save_diagrams(figure, out):
        console.print(f"wrote {path}", highlight=False)


@analyse.command("cocos")
def count(
    scores: ScoreFile,
    names: Annotated[
        list[str] | None,
        typer.Option("--objective", help="Repeat for several; a choice of five by default."),
    ] = None,
    epsilon: Annotated[float, typer.Option(help="Weights up to this size do not count.")] = 0.01,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Images per batch; all in one by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Count the samples that contribute to the gradient, for a saved score matrix."""
    saved = load_scores(scores)
    chosen = [objective(name) for name in names or OBJECTIVES]
    counts = count_contributions(chosen, _batches(saved, batch_size), epsilon)
    if as_json:
        print(json.dumps(cocos_json(counts), indent=2))
    else:
        console.print(*cocos_tables(counts), sep="\n")


def _batches(saved: SavedScores, batch_size: int | None) -> Iterator[SavedScores]:
    """Consecutive images with their own texts."""
    num_images = saved.scores.shape[0]
    for rows in blocks(num_images, batch_size or num_images):
        positives, texts = saved.positives.part(rows.start, rows.stop)
        yield SavedScores(saved.scores[rows][:, texts], positives)
