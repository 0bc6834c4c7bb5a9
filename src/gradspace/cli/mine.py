"""`gradspace mine`: the hardest negatives of a whole training set, and a look at them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from gradspace import processes
from gradspace.cli.shared import (
    AsJson,
    Data,
    Device,
    Features,
    console,
    open_recipe_data,
    process_group,
    progress_bar,
)
from gradspace.data.dataset import Dataset, Split
from gradspace.data.readers.scenes import SceneImages, true_relevance
from gradspace.mining import (
    MinedLists,
    false_negative_rate,
    mine_exact,
    mine_proposed,
    mine_to_file,
    mine_with_faiss,
    save_lists,
)
from gradspace.processes import choose_device
from gradspace.report.audit import write_audit
from gradspace.runs.data import run_data
from gradspace.runs.folder import Run
from gradspace.runs.recipe import DataRecipe
from gradspace.runs.represent import embed_split, represent_split
from gradspace.runs.system import load_system
from gradspace.scores.represented import Embeddings, Parts, Represented, load_embeddings
from gradspace.training.second_round import weights_digest


def add_to(app: typer.Typer) -> None:
    app.command("mine")(mine)


def mine(
    source: Annotated[
        Path, typer.Argument(metavar="RUN", help="A trained run, or a file of `gradspace embed`.")
    ],
    data: Data = None,
    features: Features = None,
    split: Annotated[str, typer.Option(help="The split to mine.")] = "train",
    top_texts: Annotated[int, typer.Option(min=1, help="Captions in the list of an image.")] = 300,
    top_images: Annotated[int, typer.Option(min=1, help="Images in the list of a caption.")] = 60,
    out: Annotated[
        Path | None, typer.Option(help="File of the lists; lists.safetensors in the run.")
    ] = None,
    approximate: Annotated[
        bool, typer.Option("--approximate", help="With an index of faiss, for huge collections.")
    ] = False,
    audit: Annotated[
        bool, typer.Option("--audit", help="Look for listed items that are no negatives.")
    ] = False,
    propose: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="A run that embeds: RUN, which scores pairs, orders what it finds."
        ),
    ] = None,
    proposals: Annotated[
        int, typer.Option(min=1, help="Times as many as are listed, by --propose.")
    ] = 2,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Find the hardest negatives of every image and caption, for `train --offline-negatives`.

    Interrupted, it goes on where it stopped when it is started again.
    """
    with process_group():
        run = Run(source) if source.is_dir() else None
        dataset = open_recipe_data(run_data(source, data, features)) if run or data else None
        found, about = _represent(source, run, dataset, split, device)
        path = out or (source / "lists.safetensors" if run else source.with_suffix(".lists"))
        lengths: dict[str, Any] = {"top_texts": top_texts, "top_images": top_images}
        if propose is not None:
            proposed = _proposed(propose, run_data(propose, data, features), split, device)
            lists = _mine_proposed(path, proposed, found, about, lengths, proposals)
        else:
            lists = _mine(path, found, lengths, about, approximate)
        if not processes.is_first():
            return
        told: dict[str, Any] = {"lists": str(path), **lists.record}
        chosen = dataset.splits.get(split) if dataset else None
        if audit and chosen is not None:
            told["audit"] = _audit(lists, chosen, path, quiet=as_json)
        if as_json:
            print(json.dumps(told, indent=2))
            return
        method = lists.record["method"]
        parts = [f"{method[key]:.1%}" for key in ("recall_texts", "recall_images") if key in method]
        near = f", which hold {' and '.join(parts)} of the exact ones," if parts else ""
        console.print(
            f"wrote lists of {top_texts} captions and {top_images} images{near} to {path}: train "
            f"with --offline-negatives {path}",
            highlight=False,
            soft_wrap=True,
        )


def _represent(
    source: Path, run: Run | None, dataset: Dataset | None, split: str, device: str | None
) -> tuple[Represented, dict[str, str]]:
    """What is mined, and where it comes from."""
    if run is None or dataset is None:
        return load_embeddings(source), {"embeddings": source.name}
    chosen = dataset.split(split)
    system = load_system(run.folder, choose_device(device))
    with progress_bar("embedding") as progress:
        found = represent_split(system, chosen, progress)
    weights = weights_digest(run.best)
    return found, {"dataset": dataset.name, "split": split, "weights": weights}


def _mine(
    path: Path,
    found: Represented,
    lengths: dict[str, Any],
    about: dict[str, str],
    approximate: bool,
) -> MinedLists:
    with progress_bar("mining") as progress:
        if not approximate:
            return mine_to_file(
                path,
                lambda state: mine_exact(
                    found, **lengths, source=about, state=state, progress=progress
                ),
            )
        if not isinstance(found, Embeddings):
            raise ValueError("--approximate is for runs that embed: use --propose with one of them")
        lists = mine_with_faiss(
            found,
            top_texts=lengths["top_texts"],
            top_images=lengths["top_images"],
            source=about,
        )
        if processes.is_first():
            save_lists(path, lists)
        return lists


def _proposed(folder: Path, data: DataRecipe, split: str, device: str | None) -> Embeddings:
    """By a run that embeds, of the split of the data that it was trained on, or of other data."""
    chosen = open_recipe_data(data).split(split)
    system = load_system(folder, choose_device(device))
    with progress_bar("embedding") as progress:
        return embed_split(system, chosen, progress)


def _mine_proposed(
    path: Path,
    proposer: Embeddings,
    found: Represented,
    about: dict[str, str],
    lengths: dict[str, Any],
    proposals: int,
) -> MinedLists:
    if not isinstance(found, Parts):
        raise ValueError("--propose is for a run that scores pairs, as scan and bfan do")
    with progress_bar("scoring") as progress:
        return mine_to_file(
            path,
            lambda state: mine_proposed(
                proposer,
                found,
                **lengths,
                proposals=proposals,
                source=about,
                state=state,
                progress=progress,
            ),
        )


def _audit(lists: MinedLists, split: Split, path: Path, quiet: bool) -> dict[str, Any]:
    """The true rate where the dataset knows it, and a page of suspects for a person."""
    told: dict[str, Any] = {}
    if isinstance(split.images, SceneImages):
        rates = false_negative_rate(lists, true_relevance(split))
        told["false_negatives"] = {
            kind: {f"{a}-{b}": share for (a, b), share in part.by_interval.items()}
            for kind, part in (("captions", rates.texts), ("images", rates.images))
        }
        if not quiet:
            console.print(_rates_table(told["false_negatives"]))
    page = path.with_suffix(".html")
    write_audit(page, lists, split)
    told["page"] = str(page)
    if not quiet:
        console.print(f"most suspicious pairs, to judge by eye: {page}", highlight=False)
    return told


def _rates_table(rates: dict[str, dict[str, float]]) -> Table:
    table = Table(
        title="listed items that are truly relevant", title_justify="left", box=SIMPLE_HEAD
    )
    table.add_column("ranks")
    for kind in rates:
        table.add_column(f"{kind} listed", justify="right")
    ranks = dict.fromkeys(interval for part in rates.values() for interval in part)
    for interval in ranks:
        cells = [f"{part[interval]:.1%}" if interval in part else "" for part in rates.values()]
        table.add_row(interval, *cells)
    return table
