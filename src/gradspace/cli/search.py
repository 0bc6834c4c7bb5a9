"""`gradspace index` and `gradspace search`: from a folder of photos to search results."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from gradspace.cli import options
from gradspace.cli.serve import has_server
from gradspace.cli.shared import console, errors, progress_bar
from gradspace.commands import command
from gradspace.indexes.approximate import IndexKind
from gradspace.indexes.build import IndexUpdate
from gradspace.indexes.contract import Hit, Kind
from gradspace.indexes.make import index
from gradspace.indexes.search import search
from gradspace.wording import counted, percent, typed

MOST_BROKEN_SHOWN = 10
OBEYED = re.compile("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Invisible characters that terminals obey: control characters, and the direction of writing."""

ApproximateOption = Annotated[
    IndexKind | None,
    typer.Option(help="Search a large collection by a faiss index instead of exactly."),
]


def add_to(app: typer.Typer) -> None:
    app.command("index")(index_command)
    app.command("search")(search_command)


def index_command(
    model: options.Model,
    source: options.IndexSource = None,
    *,
    out: options.IndexFolder,
    split: options.IndexSplit = None,
    features: options.FeaturesOption = None,
    metadata: options.Metadata = None,
    name: options.IndexName = None,
    engine: options.EngineAddress = None,
    approximate: ApproximateOption = None,
    embeddings: options.EmbeddingsOption = None,
    num_workers: options.NumWorkers = None,
    device: options.Device = None,
    as_json: options.AsJson = False,
) -> None:
    """Embed photos or captions into an index for `gradspace search` and `gradspace serve`.

    For your own photos: gradspace index openai/clip-vit-base-patch32 photos --out index

    When started again, it embeds only new and changed items, and removes missing ones. It can be
    interrupted at any moment: indexed items can be searched, and the next start does the rest.
    """
    made = index(
        model,
        source,
        out=out,
        split=split,
        features=features,
        metadata=metadata,
        name=name,
        engine=engine,
        approximate=approximate,
        embeddings=embeddings,
        num_workers=num_workers,
        device=device,
        show=progress_bar,
    )
    if as_json:
        told = {"index": str(out), "items": len(made), "notes": made.notes}
        print(json.dumps({**told, **vars(made.update), "recall": made.recall}))
        return
    for note in made.notes:
        errors.print(_shown(note), style="yellow", markup=False, soft_wrap=True)
    _show_update(out, len(made), made.update)
    for kind, recall in made.recall.items():
        found = f"{approximate} finds {percent(recall)} of the 10 nearest {kind}s"
        console.print(found, markup=False, highlight=False)
    searched = command("serve", out) if has_server() else command("search", out, "a dog")
    console.print(f"search it: {searched}", markup=False, highlight=False, soft_wrap=True)


def _show_update(out: Path, items: int, outcome: IndexUpdate) -> None:
    for reason in outcome.broken[:MOST_BROKEN_SHOWN]:
        errors.print(_shown(f"left out: {reason}"), style="yellow", soft_wrap=True)
    left = len(outcome.broken) - MOST_BROKEN_SHOWN
    if left > 0:
        more = f"left out: {left} more (--json lists all)"
        errors.print(more, style="yellow", markup=False, highlight=False)
    console.print(
        f"{typed(out)}: {counted(items, 'item')} ({outcome.added:,} added, "
        f"{outcome.changed:,} changed, {outcome.removed:,} removed, "
        f"{outcome.unchanged:,} unchanged, {len(outcome.broken):,} left out)",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def search_command(
    index: Annotated[Path, typer.Argument(metavar="INDEX", help="Folder of an index.")],
    query: Annotated[
        str | None,
        typer.Argument(metavar="QUERY", help="A sentence (in quotes), or an image file."),
    ] = None,
    *,
    image: Annotated[
        Path | None, typer.Option(help="An image file to combine with the sentence.")
    ] = None,
    image_weight: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Weight of the image relative to the sentence; 0.5."),
    ] = None,
    like: Annotated[
        str | None, typer.Option(metavar="KEY", help="Find items similar to this one of the index.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Number of results.")] = 10,
    find: Annotated[
        Kind | None, typer.Option(help="What to find; by default images, if there are any.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(help="A condition such as folder=holiday or taken>=2024; repeat for more."),
    ] = None,
    device: options.Device = None,
    as_json: options.AsJson = False,
) -> None:
    """Find the images or captions that fit a sentence, an image, or both."""
    hits = search(
        index,
        query,
        image=image,
        image_weight=image_weight,
        like=like,
        top=top,
        find=find,
        where=where or (),
        device=device,
        say=lambda note: errors.print(_shown(note), style="yellow", markup=False, soft_wrap=True),
    )
    if as_json:
        print(json.dumps([_as_dict(hit) for hit in hits]))
    elif hits:
        _show_hits(hits, hits[0].item.kind)
    else:
        console.print("nothing found")


def _as_dict(hit: Hit) -> dict[str, Any]:
    item = hit.item
    return {
        "key": item.key,
        "score": hit.score,
        "kind": item.kind,
        "text": item.text,
        "image": item.image,
        "metadata": dict(item.metadata),
    }


def _show_hits(hits: Sequence[Hit], kind: Kind) -> None:
    table = Table(box=None, header_style="bold")
    table.add_column("", justify="right", style="dim")
    table.add_column("score", justify="right")
    table.add_column("image" if kind == "image" else "caption", overflow="fold")
    table.add_column("caption" if kind == "image" else "image", overflow="fold", style="dim")
    for rank, hit in enumerate(hits, 1):
        item = hit.item
        first, *more = item.text.split("\n")
        caption = f"{first} (+{len(more)})" if more else first
        shown = (item.key, caption) if kind == "image" else (item.text, item.image)
        table.add_row(str(rank), f"{hit.score:.3f}", *map(_shown, shown))
    console.print(table)


def _shown(text: str) -> Text:
    """Escape what a terminal would obey, and treat brackets as text."""
    return Text(OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text))
