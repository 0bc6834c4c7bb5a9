"""The demo: four objectives trained on the built-in data, compared, and explained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from gradspace.comparison.compare import find_out, run_cells, save_findings
from gradspace.comparison.entries import Entry
from gradspace.comparison.grid import cells
from gradspace.comparison.recipe import Comparison
from gradspace.comparison.show import show_findings
from gradspace.comparison.tables import View, as_rich, make_tables
from gradspace.indexes.build import update_index
from gradspace.indexes.collection import dataset_split
from gradspace.indexes.index import create_index
from gradspace.processes import choose_device
from gradspace.report import write_report
from gradspace.runs.numbers import COCOS, RECALLS
from gradspace.runs.system import load_system

TITLE = "Four objectives on scenes"
EXPLANATION = (
    "C^q contributing negatives per query, C^B per batch, C^0 queries without any, "
    "W- and W+ weight on negatives and positives, C_eff effective number of negatives."
)


def demo_comparison() -> Comparison:
    """VSE++ on the regions of `scenes`, small enough for two cores."""
    names = ("triplet", "triplet-hard", "nt-xent", "circle/sigmoid-ms")
    return Comparison.model_validate(
        {
            "title": TITLE,
            "seeds": 2,
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
            "objectives": {name: {} for name in names},
            "recipe": {
                "training": {
                    "epochs": 7,
                    "batch_size": 32,
                    "learning_rate": 2e-3,
                    "decay_epochs": [5],
                }
            },
        }
    )


def run_demo(folder: Path, console: Console) -> None:
    """Train, evaluate, count and explain; finished trainings are kept, stopped ones go on."""
    comparison, device = demo_comparison(), choose_device()
    grid = cells(comparison, "demo")
    outcome = run_cells(comparison, grid, folder, devices=[device], most=None, console=console)
    if outcome.stopped or not outcome.entries:
        console.print("stopped; the demo goes on from here when it is started again")
        raise KeyboardInterrupt
    view = View(TITLE, (*RECALLS, "rsum"))
    findings = find_out(view, outcome.entries)
    console.print("Retrieval on 500 test images, in percent, mean ± standard deviation over seeds")
    paths = save_findings(folder, outcome.entries, findings, "results")
    show_findings(console, findings, outcome, paths)
    console.print("\nCOCOS: what contributes to the gradient of a query, over the training set")
    for table in make_tables(View(TITLE, COCOS), outcome.entries, {}):
        console.print(*as_rich(table, console.width), sep="\n")
    console.print(EXPLANATION)
    report = folder / "report.html"
    write_report(report, TITLE, outcome.entries, findings, device=device)
    console.print(f"Curves, diagrams and what the models retrieve: {report}", highlight=False)
    indexes = " ".join(str(_index(folder, entry)) for entry in _shown(outcome.entries))
    console.print(
        f"Search with the models in a browser: gradspace serve {indexes}",
        highlight=False,
        soft_wrap=True,
    )


def _shown(entries: Sequence[Entry]) -> list[Entry]:
    """The first and the last objective, to be compared side by side."""
    first = [entry for entry in entries if entry.seed == entries[0].seed]
    return [first[0], first[-1]]


def _index(folder: Path, entry: Entry) -> Path:
    """An index of what the model is tested on."""
    name = entry.objective.replace("/", "-")
    model, out = entry.run.folder, folder / "search" / name
    system, collection = load_system(model), dataset_split(entry.run.recipe().data, "test")
    index = create_index(out, model, system, collection, name=entry.objective)
    update_index(index, collection, system)
    return out
