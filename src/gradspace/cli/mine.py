"""`gradspace mine`: the hardest negatives of a whole training set, and their audit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.table import Table

from gradspace import processes
from gradspace.cli import options
from gradspace.cli.shared import console, process_group, progress_bar
from gradspace.data.dataset import Split
from gradspace.data.readers.scenes import SceneImages, true_relevance
from gradspace.mining import ComparedSuspect, MinedLists, false_negative_rate
from gradspace.report.audit import write_audit
from gradspace.runs.mine import MinedFile, mine
from gradspace.wording import counted, percent, typed


def add_to(app: typer.Typer) -> None:
    app.command("mine")(mine_command)


def mine_command(
    source: Annotated[
        Path, typer.Argument(metavar="RUN", help="A trained run, or a file of `gradspace embed`.")
    ],
    data: options.Data = None,
    features: options.FeaturesOption = None,
    split: Annotated[str | None, typer.Option(help="The split to mine, train by default.")] = None,
    top_texts: options.TopTexts = 300,
    top_images: options.TopImages = 60,
    out: options.ListsFile = None,
    approximate: options.Approximately = False,
    audit: options.Audit = False,
    propose: options.Propose = None,
    proposals: options.Proposals = None,
    device: options.Device = None,
    as_json: options.AsJson = False,
) -> None:
    """Find the hardest negatives of every image and caption, for `train --offline-negatives`.

    If it is interrupted, the same command resumes where it stopped.
    """
    if audit and not source.is_dir():
        raise ValueError("--audit needs a run, whose dataset has the captions: leave it out")
    with process_group():
        found = mine(
            source,
            data,
            split=split,
            features=features,
            top_texts=top_texts,
            top_images=top_images,
            out=out,
            approximate=approximate,
            propose=propose,
            proposals=proposals,
            device=device,
            show=progress_bar,
        )
        if processes.is_first():
            _show(found, audit, as_json)


def _show(found: MinedFile, audit: bool, as_json: bool) -> None:
    told: dict[str, Any] = {"lists": str(found.path), **found.lists.record}
    if audit and found.split is not None:
        told["audit"] = _audit(found.lists, found.split, found.path, quiet=as_json)
    if as_json:
        print(json.dumps(told, indent=2))
        return
    if found.split is not None and found.split.drawn:
        console.print(found.split.announcement, markup=False, highlight=False, soft_wrap=True)
    method = found.lists.record["method"]
    parts = [percent(method[key]) for key in ("recall_texts", "recall_images") if key in method]
    near = f", which contain {' and '.join(parts)} of the exact ones," if parts else ""
    num_texts, num_images = (
        lists.shape[1] for lists in (found.lists.texts_of_image, found.lists.images_of_text)
    )
    console.print(
        f"wrote lists of {counted(num_texts, 'caption')} and {counted(num_images, 'image')}{near} "
        f"to {typed(found.path)}: train with --offline-negatives {typed(found.path)}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _audit(lists: MinedLists, split: Split, path: Path, quiet: bool) -> dict[str, Any]:
    """Compute the true rate if the dataset knows it, and write a page of suspects."""
    told: dict[str, Any] = {}
    relevance = true_relevance(split) if isinstance(split.images, SceneImages) else None
    if relevance is not None:
        rates = false_negative_rate(lists, relevance)
        told["false_negatives"] = {
            kind: {f"{a}-{b}": share for (a, b), share in part.by_interval.items()}
            for kind, part in (("captions", rates.texts), ("images", rates.images))
        }
        if not quiet:
            console.print(_rates_table(told["false_negatives"]))
    page = path.with_suffix(".html")
    suspects = write_audit(page, lists, split)
    told["page"] = str(page)
    told["likely_false_negatives"] = _looked_at(suspects.likely, relevance)
    told["model_errors"] = _looked_at(suspects.errors, relevance)
    if not quiet:
        console.print(
            f"{_in_words(told['likely_false_negatives'], 'likely false negative')} and "
            f"{_in_words(told['model_errors'], 'model error')}, to judge by eye: {typed(page)}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    return told


def _looked_at(
    found: Sequence[ComparedSuspect], relevance: NDArray[np.bool_] | None
) -> dict[str, Any]:
    """Count suspects, and the share of them that is truly relevant, if known."""
    told: dict[str, Any] = {"number": len(found)}
    if relevance is not None and found:
        true = [bool(relevance[each.suspect.caption, each.suspect.image]) for each in found]
        told["truly_relevant"] = sum(true) / len(true)
    return told


def _in_words(told: dict[str, Any], what: str) -> str:
    known = told.get("truly_relevant")
    true = "" if known is None else f" ({percent(known)} truly relevant)"
    return f"{told['number']} {what}{'' if told['number'] == 1 else 's'}{true}"


def _rates_table(rates: dict[str, dict[str, float]]) -> Table:
    table = Table(
        title="listed items that are truly relevant", title_justify="left", box=SIMPLE_HEAD
    )
    table.add_column("ranks")
    for kind in rates:
        table.add_column(f"{kind} listed", justify="right")
    ranks = {interval for part in rates.values() for interval in part}
    for interval in sorted(ranks, key=lambda ends: [int(end) for end in ends.split("-")]):
        cells = [percent(part[interval]) if interval in part else "" for part in rates.values()]
        table.add_row(interval, *cells)
    return table
