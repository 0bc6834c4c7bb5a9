"""Indexing of photos, captions or a dataset by a model: `gs.index`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gradspace.commands import EXAMPLE_MODEL, command
from gradspace.data.open import is_dataset
from gradspace.indexes.approximate import IndexKind, load_faiss
from gradspace.indexes.build import IndexUpdate, update_index
from gradspace.indexes.collection import Collection, caption_file, dataset_split, photo_folder
from gradspace.indexes.contract import Kind
from gradspace.indexes.from_shards import index_shards
from gradspace.indexes.index import Index, create_index
from gradspace.indexes.local import LocalEngine
from gradspace.progress import Show, silently
from gradspace.runs.data import run_data
from gradspace.runs.folder import Run, open_run
from gradspace.runs.model import LoadedModel, as_model
from gradspace.runs.system import is_pretrained
from gradspace.wording import typed


@dataclass(frozen=True)
class MadeIndex:
    """An index that is up to date, with a summary of the update."""

    index: Index
    update: IndexUpdate
    recall: dict[Kind, float]
    """Recall of an approximate index, by kind; empty if search is exact."""

    notes: Sequence[str] = ()
    """Sentences on what may surprise users about the collection."""

    def __len__(self) -> int:
        return len(self.index.engine)


def index(
    model: LoadedModel | str | Path,
    source: str | Path | None = None,
    *,
    out: str | Path,
    split: str | None = None,
    features: str | Path | None = None,
    metadata: str | Path | None = None,
    name: str | None = None,
    engine: str | None = None,
    approximate: IndexKind | None = None,
    embeddings: str | Path | None = None,
    num_workers: int | None = None,
    device: str | None = None,
    show: Show = silently,
) -> MadeIndex:
    """Embed photos or captions into an index for `search` and `gradspace serve`.

    When called again, it embeds only new and changed items, and removes missing ones. It can be
    interrupted at any moment: indexed items can be searched, and the next call does the rest.

    Args:
        model: CLIP, SigLIP ... by folder or hub name; the folder of a run; or a loaded model.
        source: a folder of photos, a text file with one caption per line, or a dataset; by default
            the dataset of the run.
        out: folder of the index.
        split: the split of a dataset, test by default.
        metadata: a CSV with a column `path` and others to filter by, for photos.
        engine: address of a database for the vectors; by default they are in the folder.
        embeddings: a folder of `gradspace embed --shards`, which is indexed instead of a source.
        approximate: search a large collection by a faiss index instead of exactly.

    Examples:
        >>> clip = "openai/clip-vit-base-patch32"
        >>> index(clip, "photos", out="photos.index")  # doctest: +SKIP
    """
    place = _place_of(model)
    notes: Sequence[str] = ()
    if approximate is not None:
        load_faiss()  # before the work
    if embeddings is not None:
        _check_alone(source, split, features, metadata)
        folder = Path(embeddings)
        made, update = index_shards(folder, place, Path(out), name=name, engine=engine, show=show)
    else:
        collection = _collect(place, source, split, metadata, features, out)
        loaded = as_model(model, device)
        made = create_index(Path(out), place, loaded.system, collection, name=name, engine=engine)
        update, notes = _update(made, collection, loaded, num_workers, show), collection.notes
    return MadeIndex(made, update, _approximate(made, approximate, show), notes)


def _check_alone(*others: str | Path | None) -> None:
    """Raise a ValueError if more than --embeddings says what to index."""
    if any(others):
        options = "the source, --split, --features and --metadata"
        raise ValueError(f"--embeddings defines what is indexed: leave {options} out")


def _update(
    made: Index, collection: Collection, model: LoadedModel, num_workers: int | None, show: Show
) -> IndexUpdate:
    if num_workers is None:
        num_workers = default_workers(model.system.device.type)
    with show("indexing") as progress:
        return update_index(
            made, collection, model.system, num_workers=num_workers, progress=progress
        )


def _place_of(model: LoadedModel | str | Path) -> Path:
    return model.source if isinstance(model, LoadedModel) else Path(model)


def _collect(
    model: Path,
    source: str | Path | None,
    split: str | None,
    metadata: str | Path | None,
    features: str | Path | None,
    out: str | Path,
) -> Collection:
    """Find what to index, before the model is loaded; a ValueError if either does not exist."""
    if not is_pretrained(model):
        _check_order(model, source, out)
        open_run(model)
    return collection_of(model, source, split, metadata, features)


def _check_order(model: Path, source: str | Path | None, out: str | Path) -> None:
    """Raise a ValueError if the model is a folder of photos, given in the wrong order."""
    if source is None and model.is_dir() and not Run(model).recipe_file.is_file():
        raise ValueError(
            f"{typed(model)} is neither a run nor CLIP, SigLIP ...: the model comes before what it "
            f"is to index, `{command('index', EXAMPLE_MODEL, model, '--out', out)}`"
        )


def _approximate(made: Index, wanted: IndexKind | None, show: Show) -> dict[Kind, float]:
    if isinstance(made.engine, LocalEngine):
        with show("building the faiss index") as progress:
            return made.engine.approximate(wanted, progress)
    if wanted is not None:
        raise ValueError("--approximate is for vectors in a folder; add ?hnsw=1 to --engine")
    return {}


def default_workers(device: str) -> int:
    """Use worker processes for a GPU, which waits for pictures, and none for a busy CPU."""
    cores = os.cpu_count() or 1
    return max(1, min(8, cores - 1)) if device == "cuda" else 1


def collection_of(
    model: Path,
    source: str | Path | None,
    split: str | None,
    metadata: str | Path | None,
    features: str | Path | None,
) -> Collection:
    if metadata is not None and (source is None or not Path(source).is_dir()):
        raise ValueError("--metadata is for a folder of photos")
    if source is None:
        if is_pretrained(model):
            raise ValueError(f"{typed(model)} has no dataset of its own: name what to index")
        return dataset_split(run_data(model, None, features), split or "test", model)
    place = Path(source)
    captions = place.is_file() and place.suffix == ".txt"
    if not captions and metadata is None and is_dataset(source):
        return dataset_split(run_data(model, source, features), split or "test", model)
    if split or features:
        option = "--split" if split else "--features"
        what = "a file of captions" if captions else "a folder of photos"
        raise ValueError(f"{option} is for datasets, and {typed(source)} is {what}: leave it out")
    if captions:
        return caption_file(place)
    if not place.exists():
        raise ValueError(
            f"{typed(place)} does not exist: expected a folder of photos, a text file with "
            "one caption per line, or a dataset"
        )
    return photo_folder(place, None if metadata is None else Path(metadata))
