"""`gradspace analyse`: objectives, diagrams, COCOS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from gradspace.analysis.cocos import Counting
from gradspace.analysis.diagrams import draw_diagrams, save_diagrams
from gradspace.analysis.score_file import SavedScores, load_scores
from gradspace.analysis.tables import cocos_json, cocos_tables, count_contributions
from gradspace.cli.options import AsJson, Device
from gradspace.cli.shared import console
from gradspace.comparison.compare import gather
from gradspace.comparison.flips import find_flips
from gradspace.comparison.tables import View, as_rich, make_tables
from gradspace.objectives import Objective, list_objectives, objective
from gradspace.processes import choose_device
from gradspace.runs.data import open_recipe
from gradspace.runs.folder import Run
from gradspace.runs.numbers import ARROWS, COCOS, COCOS_LEGEND, COCOS_SPREAD
from gradspace.runs.recipe import build_objective
from gradspace.scores.tiles import blocks
from gradspace.wording import typed

app = typer.Typer(help="Show what an objective does: weights, diagrams, contributing samples.")


def add_to(around: typer.Typer) -> None:
    around.add_typer(app, name="analyse", no_args_is_help=True)


OBJECTIVES = ("triplet", "triplet-hard", "nt-xent", "smooth-ap", "circle/sigmoid-ms")

EPSILON = "Largest weight that does not count; 0.01 by default."
CONVENTION = "gradient, or icr: without the 1/temperature of NT-Xent and SmoothAP, as published."
Epsilon = Annotated[float | None, typer.Option(help=EPSILON)]
CountedAs = Annotated[str | None, typer.Option("--convention", help=CONVENTION)]

OF_REDUCTIONS = (
    "Sums and means are as published. They make gradients that differ by up to four orders of "
    "magnitude, so that each objective needs its own learning rate; "
    'RetrievalLoss(reduction="mean") makes them comparable.'
)

ScoreFile = Annotated[
    Path,
    typer.Argument(
        metavar="SCORES", help="A safetensors file with scores, image_ids and text_ids."
    ),
]


@app.command("objectives")
def show_objectives(as_json: AsJson = False) -> None:
    """List every objective with its parameters and its paper."""
    if as_json:
        print(json.dumps([vars(info) for info in list_objectives()], indent=2))
        return
    for info in list_objectives():
        parameters = ", ".join(f"{k}={v}" for k, v in info.parameters.items())
        about = f"{info.source}; {info.reduction} over the queries"
        console.print(f"[bold]{escape(info.name)}[/]  [dim]{escape(about)}[/]", highlight=False)
        console.print(f"    {info.summary}", highlight=False, markup=False)
        listed = f"    {parameters or 'no parameters'}"
        console.print(listed, style="cyan", markup=False, highlight=False)
    console.print(OF_REDUCTIONS, highlight=False, soft_wrap=True)


@app.command()
def diagram(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="OBJECTIVE",
            help="A name such as circle/sigmoid-ms, or the folder of a run, with its parameters.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Path to write to; .png and .pdf are added.")] = Path(
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
    chosen = [objective_to_draw(name) for name in names]
    figure = draw_diagrams(chosen, load_scores(scores) if scores else None, relative)
    for path in save_diagrams(figure, out):
        console.print(f"wrote {typed(path)}", markup=False, highlight=False, soft_wrap=True)


@app.command("cocos")
def count(
    scores: ScoreFile,
    names: Annotated[
        list[str] | None,
        typer.Option("--objective", help="Repeat for several; by default a choice of five."),
    ] = None,
    epsilon: Epsilon = None,
    convention: CountedAs = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Images per batch; by default all.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Count the samples that contribute to the gradient, for a saved score matrix."""
    saved = load_scores(scores)
    chosen = [objective(name) for name in names or OBJECTIVES]
    counting = _counting(epsilon, convention) or Counting()
    counts = count_contributions(chosen, _batches(saved, batch_size), counting)
    if as_json:
        print(json.dumps(cocos_json(counts), indent=2))
    else:
        console.print(*cocos_tables(counts), sep="\n")


@app.command("run")
def run_analysis(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Trained runs.")],
    epsilon: Epsilon = None,
    convention: CountedAs = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Count the contributions at the best weights, over the training set (ICR Tables 2-4).

    Without --epsilon and --convention, they are those of the runs' evaluation.
    """
    counting = _counting(epsilon, convention)
    _, entries = gather(runs, choose_device(device), counting)
    if as_json:
        rows = [row for entry in entries for row in entry.rows()]
        print(json.dumps([vars(row) for row in rows], indent=2))
        return
    for counted in sorted({str(entry.analysis.counting) for entry in entries}):
        console.print(counted, style="dim", markup=False, highlight=False)
    console.print(COCOS_SPREAD, markup=False, highlight=False)
    for table in make_tables(View("", COCOS), entries, {}):
        console.print(*as_rich(table, console.width), sep="\n")
    console.print(COCOS_LEGEND, highlight=False)


@app.command()
def flips(
    first: Annotated[Path, typer.Argument(metavar="RUN", help="A trained run.")],
    second: Annotated[Path, typer.Argument(metavar="OTHER", help="Another run, on the same data.")],
    k: Annotated[int, typer.Option(min=1, help="Largest rank that counts as an answer.")] = 1,
    show: Annotated[int, typer.Option(min=0, help="Number of queries to list of each kind.")] = 5,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """List test queries that one run answers and the other does not."""
    _, entries = gather([first, second], choose_device(device))
    if len(entries) != 2:
        raise ValueError(
            f"flips are between two runs, and {first} and {second} contain {len(entries)}: give "
            "the folders of two runs"
        )
    a, b = entries
    found = find_flips(a.results, b.results, k)
    if as_json:
        plain = {way: {n: v.tolist() for n, v in vars(f).items()} for way, f in found.items()}
        print(json.dumps(plain, indent=2))
        return
    split = open_recipe(a.run.recipe().data, run=a.run.folder).splits[a.results.split]
    names = {"i2t": split.image_names, "t2i": split.captions}
    for way, of_way in found.items():
        told = f"{len(of_way.both)} answered by both, {len(of_way.neither)} by neither"
        lines = [f"{ARROWS[way]}, rank up to {k}: {told}"]
        for run, part in ((first, of_way.only_first), (second, of_way.only_second)):
            lines.append(f"  {len(part)} only by {run}")
            lines += [f"    {names[way][query]}" for query in part[:show].tolist()]
        console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def objective_to_draw(name: str) -> Objective:
    """Make the objective of that name with its defaults, or that of a run."""
    run = Run(Path(name))
    return build_objective(run.recipe()) if run.recipe_file.is_file() else objective(name)


def _counting(epsilon: float | None, convention: Any) -> Counting | None:
    """Make the definition of a contribution, if any of it is given."""
    given = {"epsilon": epsilon, "convention": convention}
    chosen = {name: value for name, value in given.items() if value is not None}
    return Counting(**chosen) if chosen else None


def _batches(saved: SavedScores, batch_size: int | None) -> Iterator[SavedScores]:
    """Yield batches of consecutive images with their own texts."""
    num_images = saved.scores.shape[0]
    for rows in blocks(num_images, batch_size or num_images):
        positives, texts = saved.positives.part(rows.start, rows.stop)
        yield SavedScores(saved.scores[rows][:, texts], positives)
