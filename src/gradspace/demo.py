"""The demo: four objectives trained on the built-in data, compared, and explained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from gradspace.analysis.cocos import CocosMeter
from gradspace.analysis.pictures import retrieved_images
from gradspace.analysis.score_file import SavedScores
from gradspace.analysis.tables import cocos_tables, count_contributions
from gradspace.data.batches import training_batches
from gradspace.data.dataset import Dataset, Split
from gradspace.data.open import open_dataset
from gradspace.embedding import embed_split
from gradspace.files import write_atomically
from gradspace.metrics import RetrievalReport, retrieval_report
from gradspace.objectives import objective
from gradspace.positives import match_ids
from gradspace.recipes import Recipe, make_recipe
from gradspace.runs import Run, create_run
from gradspace.system import System, default_device, load_system, prepare_system
from gradspace.training import train
from gradspace.training.monitor import Monitor
from gradspace.training.schedule import stages

OBJECTIVES = ("triplet", "triplet-hard", "nt-xent", "circle/sigmoid-ms")
EXPLANATION = (
    "C^q contributing negatives per query, C^B per batch, C^0 queries without any, "
    "W- and W+ weight on negatives and positives, C_eff effective number of negatives."
)


def demo_recipe(name: str) -> Recipe:
    """VSE++ on the regions of `scenes`, small enough for two cores."""
    return make_recipe(
        {
            "data": {"source": "scenes", "num_train": 2000, "num_dev": 200, "num_test": 500},
            "model": {"name": "vse++", "width": 256, "word_width": 128},
            "objective": {"name": name},
            "training": {"epochs": 7, "batch_size": 32, "learning_rate": 2e-3, "decay_epochs": [5]},
        }
    )


def run_demo(folder: Path, console: Console) -> None:
    """Train, evaluate, count and draw; finished trainings are kept, stopped ones go on."""
    data = demo_recipe(OBJECTIVES[0]).data
    dataset = open_dataset(data.source, **data.parameters)
    test = dataset.splits["test"]
    systems = {name: _trained(folder, name, dataset, console) for name in OBJECTIVES}
    found = {name: embed_split(system, test) for name, system in systems.items()}
    reports = {name: retrieval_report(e.scores(), e.positives()) for name, e in found.items()}
    console.print(_results_table(reports, f"on {len(test.image_names)} test images, in percent"))
    counts: dict[str, Mapping[str, CocosMeter]] = {}
    for name, system in systems.items():
        batches = islice(score_batches(system, dataset.splits["train"]), 10)
        counts |= count_contributions([objective(name)], batches, epsilon=0.01)
    console.print("\nCOCOS: what contributes to the gradient of a query, over 10 training batches")
    console.print(*cocos_tables(counts), sep="\n")
    console.print(EXPLANATION)
    best = max(reports, key=lambda name: reports[name].rsum)
    picture = folder / "retrieved.png"
    with write_atomically(picture, "wb") as file:
        retrieved_images(found[best], test, range(0, 40, 5)).save(file, "PNG")
    console.print(f"What {best} retrieves for eight captions: {picture}", highlight=False)


def score_batches(system: System, split: Split, batch_size: int = 128) -> Iterator[SavedScores]:
    """Scores of training batches by a finished model, as COCOS looks at them (ICR section 5)."""
    system.model.eval()
    for batch in training_batches(
        split, system.encode, batch_size=batch_size, seed=0, epoch=0, pixels=system.training_crop
    ):
        with torch.inference_mode():
            moved = batch.to(system.device)
            images, texts = system.model(moved.images, moved.tokens, moved.lengths)
        scores = (images @ texts.t()).float().cpu().clone()
        yield SavedScores(scores, match_ids(batch.image_ids, batch.text_ids))


def _trained(folder: Path, name: str, dataset: Dataset, console: Console) -> System:
    """The model of an objective, trained now or before."""
    recipe, end = demo_recipe(name), stages(demo_recipe(name))[-1].end
    run = Run(folder / name.replace("/", "-"))
    if not run.recipe_file.exists():
        create_run(run.folder, recipe)
    elif run.recipe() != recipe:
        raise ValueError(f"{run.folder} is a run of another version: delete {folder}")
    console.print(f"[bold]{name}[/]", highlight=False)
    system = prepare_system(run, recipe, dataset, default_device())
    with Monitor(console, end) as monitor:
        progress = train(recipe, dataset, system, run, monitor)
    if progress.epoch < end:
        console.print("stopped; the demo goes on from here when it is started again")
        raise KeyboardInterrupt
    return load_system(run.folder)


def _results_table(reports: Mapping[str, RetrievalReport], title: str) -> Table:
    table = Table(title=f"Retrieval {title}", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("objective", no_wrap=True)
    for direction in ("i→t", "t→i"):
        for k in (1, 5, 10):
            table.add_column(f"{direction}\nR@{k}", justify="right")
    table.add_column("rsum", justify="right")
    for name, report in reports.items():
        recalls = (report.image_to_text.recall, report.text_to_image.recall)
        cells = [f"{recall[k]:.1f}" for recall in recalls for k in (1, 5, 10)]
        table.add_row(name, *cells, f"{report.rsum:.1f}")
    return table
