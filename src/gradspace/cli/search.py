"""`gradspace index` and `gradspace search`: from a folder of photos to what fits a sentence."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from PIL import Image
from rich.table import Table
from rich.text import Text

from gradspace.cli.shared import AsJson, Device, Features, console, errors, progress_bar
from gradspace.data.image_files import decode, image_endings
from gradspace.data.open import is_dataset
from gradspace.indexes.approximate import IndexKind
from gradspace.indexes.build import Outcome, update_index
from gradspace.indexes.collection import (
    Collection,
    caption_file,
    dataset_split,
    photo_folder,
)
from gradspace.indexes.contract import Hit, Kind
from gradspace.indexes.index import Index, create_index
from gradspace.indexes.local import LocalEngine
from gradspace.indexes.searcher import Query, open_searcher
from gradspace.indexes.where import parse_condition
from gradspace.processes import choose_device
from gradspace.runs.data import run_data
from gradspace.runs.system import is_pretrained, load_system

MOST_BROKEN_SHOWN = 10
OBEYED = re.compile("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that a terminal does not show but does: control, and the direction of writing."""


def add_to(app: typer.Typer) -> None:
    app.command("index")(index)
    app.command("search")(search)


def index(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="Folder of a run, or of CLIP, SigLIP ..., or a hub's name."
        ),
    ],
    source: Annotated[
        str | None,
        typer.Argument(
            help="Folder of photos, text file with a caption a line, or a dataset; by default the "
            "dataset of the run."
        ),
    ] = None,
    *,
    out: Annotated[Path, typer.Option(help="Folder of the index: new, or to bring up to date.")],
    split: Annotated[str, typer.Option(help="Which split of a dataset.")] = "test",
    features: Features = None,
    metadata: Annotated[
        Path | None,
        typer.Option(help="CSV with a column path and others, for photos: see `search --where`."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What the index is called; its folder's.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="Address of a database for the vectors; by default the folder."),
    ] = None,
    approximate: Annotated[
        IndexKind | None,
        typer.Option(help="Search a large collection by an index of faiss instead of exactly."),
    ] = None,
    num_workers: Annotated[
        int | None, typer.Option(min=0, help="Processes that decode photos; by default by cores.")
    ] = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Embed photos or captions into an index for `gradspace search` and `gradspace serve`.

    Started again it embeds only what is new or has changed, and removes what is gone. It can be
    interrupted at any moment: what is indexed is found, and the next start goes on.
    """
    system = load_system(model, choose_device(device))
    collection = _collection(model, source, split, metadata, features)
    made = create_index(out, model, system, collection, name=name, engine=engine)
    workers = _num_workers(system.device.type) if num_workers is None else num_workers
    try:
        with progress_bar("indexing") as progress:
            outcome = update_index(made, collection, system, num_workers=workers, progress=progress)
    except KeyboardInterrupt:
        errors.print("stopped; what is indexed is kept, and the same command goes on")
        raise
    recalls = _approximate(made, approximate)
    if as_json:
        shown = {"index": str(out), "items": len(made.engine), **vars(outcome), "recall": recalls}
        print(json.dumps(shown))
    else:
        _show_outcome(out, len(made.engine), outcome)
        for kind, recall in recalls.items():
            found = f"{approximate} finds {100 * recall:.1f} % of the 10 nearest {kind}s"
            console.print(found, highlight=False)


def _approximate(made: Index, wanted: IndexKind | None) -> dict[Kind, float]:
    """What share an approximate index finds, by kind; none where search is exact."""
    if isinstance(made.engine, LocalEngine):
        with progress_bar("building the index of faiss") as progress:
            return made.engine.approximate(wanted, progress)
    if wanted is not None:
        raise ValueError("--approximate is for vectors in a folder; add ?hnsw=1 to --engine")
    return {}


def _num_workers(device: str) -> int:
    """A GPU waits for pictures; a CPU is busy with the network."""
    cores = os.cpu_count() or 1
    return max(1, min(8, cores - 1)) if device == "cuda" else 1


def _collection(
    model: Path, source: str | None, split: str, metadata: Path | None, features: Path | None
) -> Collection:
    if metadata is not None and (source is None or not Path(source).is_dir()):
        raise ValueError("--metadata is for a folder of photos")
    if source is None:
        if is_pretrained(model):
            raise ValueError(f"{model} is no run with a dataset of its own: say what to index")
        return dataset_split(run_data(model, None, features), split)
    place = Path(source)
    if place.is_file() and place.suffix == ".txt":
        return caption_file(place)
    if metadata is not None or not is_dataset(source):
        return photo_folder(place, metadata)
    return dataset_split(run_data(model, source, features), split)


def _show_outcome(out: Path, items: int, outcome: Outcome) -> None:
    for reason in outcome.broken[:MOST_BROKEN_SHOWN]:
        errors.print(_shown(f"left out: {reason}"), style="yellow", soft_wrap=True)
    left = len(outcome.broken) - MOST_BROKEN_SHOWN
    if left > 0:
        errors.print(f"left out: {left} more (--json lists all)", style="yellow", highlight=False)
    console.print(
        f"{out}: {items:,} items ({outcome.added:,} added, {outcome.changed:,} changed, "
        f"{outcome.removed:,} removed, {outcome.unchanged:,} unchanged, "
        f"{len(outcome.broken):,} left out)",
        highlight=False,
        soft_wrap=True,
    )


def search(
    index: Annotated[Path, typer.Argument(help="Folder of an index.")],
    query: Annotated[
        str | None, typer.Argument(help="A sentence, or an image file; quote a sentence.")
    ] = None,
    *,
    image: Annotated[
        Path | None, typer.Option(help="An image file, to be combined with the sentence.")
    ] = None,
    image_weight: Annotated[
        float,
        typer.Option(min=0, max=1, help="What the image counts beside the sentence."),
    ] = 0.5,
    like: Annotated[
        str | None, typer.Option(metavar="KEY", help="More like this item of the index.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many to find.")] = 10,
    find: Annotated[
        Kind | None, typer.Option(help="What to find; by default images, where there are any.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(help="Only items with, as folder=holiday or taken>=2024; may be repeated."),
    ] = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Find the images or captions that fit a sentence, an image, or both."""
    conditions = [parse_condition(text) for text in where or []]
    asked = _query(query, image, image_weight, like)
    searcher = open_searcher(index, choose_device(device))
    kind = find or searcher.index.kinds[0]
    [hits] = searcher.search([asked], top, kind, conditions)
    if as_json:
        print(json.dumps([_as_dict(hit) for hit in hits]))
    elif hits:
        _show_hits(hits, kind)
    else:
        console.print("nothing found")


def _query(text: str | None, image: Path | None, weight: float, like: str | None) -> Query:
    if image is None and text is not None and _names_an_image(text):
        text, image = "", Path(text)
    if not text and image is None and not like:
        raise ValueError("say what to search for: a sentence, an image file, or --like KEY")
    picture = None if image is None else _read_picture(image)
    return Query(text or "", picture, like or "", weight)


def _names_an_image(text: str) -> bool:
    return Path(text).suffix.lower() in image_endings() and (
        Path(text).is_file() or " " not in text
    )


def _read_picture(path: Path) -> Image.Image:
    try:
        with path.open("rb") as file:
            return decode(file)
    except Exception as error:  # a damaged file can make a decoder raise anything
        raise ValueError(f"{path} cannot be read as an image: {error}") from error


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
    """As it is: brackets are no markup, and what a terminal would obey is escaped."""
    return Text(OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text))
