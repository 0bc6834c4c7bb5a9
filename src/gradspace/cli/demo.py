"""`gradspace demo`: four objectives trained on the built-in data, compared, and explained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer
from rich.console import Console

from gradspace.cli.serve import SERVER, has_server
from gradspace.cli.shared import console as shown
from gradspace.commands import command, pip_install
from gradspace.comparison.entries import Entry
from gradspace.comparison.grid import cells
from gradspace.comparison.recipe import Comparison
from gradspace.comparison.show import show_findings
from gradspace.comparison.tables import View, as_rich, make_tables
from gradspace.indexes.make import index
from gradspace.report.compare import ComparisonPlan, run_plan
from gradspace.runs.numbers import COCOS, COCOS_LEGEND, COCOS_SPREAD, RECALLS
from gradspace.wording import typed

TITLE = "Four objectives on scenes"

# The share is the mean over 2,000 random batches of the training captions, by `true_relevance`.
ON_SCENES = (
    "Scenes show how to read a comparison, not which objective is best on photos. In a batch of "
    "32, 9% of the images have a caption of another one that is true of them too. Objectives of "
    "the hardest negative begin with an epoch of nt-xent: without it, most of such a short "
    "training would be over before they learn."
)


def add_to(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and pictures.")] = Path("demo"),
) -> None:
    """Train four objectives on built-in data, compare them and show why they differ."""
    run_demo(out, shown)


def demo_comparison() -> Comparison:
    """Make a comparison of VSE++ on the regions of `scenes`, small enough for two cores.

    The hardest negatives alone teach little in the first three epochs, a third of what two cores
    have time for, so objectives of these begin with an epoch of all negatives.
    """
    mined = {"warm_up": "nt-xent"}
    objectives = {"triplet": {}, "triplet-hard": mined, "nt-xent": {}, "circle/sigmoid-ms": mined}
    return Comparison.model_validate(
        {
            "title": TITLE,
            "seeds": 2,
            "metrics": [*RECALLS, "rsum"],
            "datasets": {
                "scenes": {
                    "regions": {
                        "source": "scenes",
                        "num_train": 2000,
                        "num_dev": 200,
                        "num_test": 500,
                    }
                }
            },
            "models": {"VSE++": {"reads": "regions", "model": {"width": 128, "word_width": 64}}},
            "objectives": {
                name: {"objective": {"name": name, **more}} for name, more in objectives.items()
            },
            "recipe": {
                "training": {
                    "epochs": 10,
                    "batch_size": 32,
                    "learning_rate": 2e-3,
                    "decay_epochs": [7],
                }
            },
        }
    )


def run_demo(folder: Path, console: Console) -> None:
    """Train, evaluate, count and explain; finished runs are kept, and stopped ones resumed."""
    comparison = demo_comparison()
    plan = ComparisonPlan(comparison, "report", folder, cells(comparison, "demo"))
    done = run_plan(plan, console=console)
    if done.runs.stopped:
        raise KeyboardInterrupt
    *paths, report = done.paths
    console.print("Retrieval on 500 test images, in percent, mean ± standard deviation over seeds")
    show_findings(console, done.findings, done.runs, paths)
    console.print(f"\n{ON_SCENES}", markup=False, highlight=False)
    console.print("\nContributions to the gradient of a query, over the training set")
    console.print(COCOS_SPREAD, markup=False)
    for table in make_tables(View(TITLE, COCOS), done.runs.entries, {}):
        console.print(*as_rich(table, console.width), sep="\n")
    console.print(COCOS_LEGEND)
    console.print(
        f"Curves, diagrams and retrieved images: {typed(report)}",
        markup=False,
        highlight=False,
    )
    best, other = _best_and_other(done.runs.entries)
    console.print(
        f"Search in a browser with the best of these models, {best.objective}, and compare it "
        f"with {other.objective}:",
        markup=False,
        highlight=False,
    )
    indexes = [_index(folder, entry) for entry in (best, other)]
    if not has_server():
        console.print(pip_install(SERVER), markup=False, highlight=False, soft_wrap=True)
    console.print(command("serve", *indexes), markup=False, highlight=False, soft_wrap=True)


def _best_and_other(entries: Sequence[Entry]) -> tuple[Entry, Entry]:
    """Return the run of the highest rsum, and the best one of the weakest objective."""
    by_objective: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=_rsum, reverse=True):
        by_objective.setdefault(entry.objective, []).append(entry)
    best, *others = by_objective.values()
    last = min(others, key=lambda group: fmean(map(_rsum, group)))
    return best[0], last[0]


def _rsum(entry: Entry) -> float:
    return entry.results.metrics["rsum"]


def _index(folder: Path, entry: Entry) -> Path:
    """Index the test data of a model."""
    out = folder / "search" / entry.objective.replace("/", "-")
    index(entry.run.folder, out=out, name=entry.objective)
    return out
