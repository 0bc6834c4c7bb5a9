"""Indexes: folders that record the model of their vectors, and the engine that stores them.

index.json      the model and its digest, the collection, the engine
segments/       items and vectors, if the engine is the folder itself
thumbnails/     small pictures of the images
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, ConfigDict, ValidationError

from gradspace.commands import EXAMPLE_MODEL, command
from gradspace.files import check_out_folder, write_atomically
from gradspace.indexes.collection import Collection, identity, open_collection
from gradspace.indexes.contract import Engine, Hit, Kind
from gradspace.indexes.engines import absolute_address, open_engine
from gradspace.indexes.local import LocalEngine
from gradspace.indexes.thumbnails import Thumbnails, small
from gradspace.indexes.where import Condition, check_fields
from gradspace.models import PairScorer
from gradspace.runs.folder import Run
from gradspace.runs.system import System, is_pretrained

SAMPLES, SAMPLE_BYTES = 64, 4096
"""Number and size of the pieces of a weights file that identify it."""


class IndexRecord(BaseModel):
    """Contents of `index.json`."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    format: int = 1
    name: str
    model: str
    """Folder of the run or model, or its name on the hub."""
    digest: str
    """Digest of the model's weights."""
    width: int
    collection: dict[str, Any]
    kinds: tuple[Kind, ...]
    engine: str | None = None
    """Address of a database; without one the vectors are in the folder."""
    table: str = ""
    """Name of the index in the database."""


def _engine(folder: Path, record: IndexRecord) -> Engine:
    if record.engine is None:
        engine = LocalEngine(folder / "segments", record.width)
        engine.segments()  # finds damage at once
        return engine
    return open_engine(record.engine, record.table, record.width)


class Index:
    """A folder of vectors and thumbnails, with a record of their origin."""

    def __init__(self, folder: Path, record: IndexRecord) -> None:
        self.folder, self.record = folder, record
        self.engine = _engine(folder, record)
        self.thumbnails = Thumbnails(folder / "thumbnails")
        self._fields: tuple[int, set[str]] = 0, set()

    def find(
        self,
        queries: NDArray[np.float32],
        k: int,
        kind: Kind,
        where: Sequence[Condition] = (),
    ) -> list[list[Hit]]:
        """Search the engine; if nothing is found, a condition on an unknown field is an error."""
        found = self.engine.search(queries, k, kind, where)
        if where and not any(found):
            if self._fields[0] != len(self.engine):
                self._fields = len(self.engine), self.engine.fields()
            check_fields(where, self._fields[1], self.name)
        return found

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return self.record.kinds

    @cached_property
    def collection(self) -> Collection:
        """Current state of the indexed collection."""
        return open_collection(self.record.collection)

    def picture(self, key: str) -> Image.Image:
        """Load the picture of an item; a KeyError if there is no such item."""
        [found] = self.engine.get([key])
        if found is None:
            raise KeyError(key)
        return self.collection.picture(found[0].image)

    def thumbnail(self, key: str) -> bytes | None:
        """Return a small JPEG of an image; None if it has no picture."""
        stored = self.thumbnails.read(key)
        if stored is not None:
            return stored
        try:
            return small(self.picture(key))
        except (KeyError, ValueError):
            return None


def create_index(
    folder: Path,
    model: Path,
    system: System,
    collection: Collection,
    *,
    name: str | None = None,
    engine: str | None = None,
) -> Index:
    """Create an index, or open the one in the folder if model and collection are the same."""
    check_reads(system, collection, folder)
    kinds: list[Kind] = ["image"] if collection.split.image_names else []
    kinds += ["caption"] if collection.split.captions else []
    width, record = system.model.width, collection.record
    return make_index(folder, model, width, record, kinds, name=name, engine=engine)


def make_index(
    folder: Path,
    model: Path,
    width: int,
    collection: Mapping[str, Any],
    kinds: Sequence[Kind],
    *,
    name: str | None = None,
    engine: str | None = None,
) -> Index:
    """Make an index for vectors of any origin."""
    _check_place(folder)
    record = IndexRecord(
        name=name or folder.name,
        model=str(model.absolute() if model.exists() else model),
        digest=model_digest(model),
        width=width,
        collection=dict(collection),
        kinds=tuple(kinds),
        engine=engine and absolute_address(engine),
        table=_table_name(name or folder.name) if engine else "",
    )
    if (folder / "index.json").exists():
        old = read_record(folder)
        if len(Index(folder, old).engine):  # an empty index may be redefined
            _check_same(folder, old, record)
            record = record.model_copy(update={"name": name or old.name, "table": old.table})
    index = Index(folder, record)
    with write_atomically(folder / "index.json") as file:
        file.write(record.model_dump_json(indent=2) + "\n")
    return index


def _table_name(name: str) -> str:
    """Make a name that no other index has."""
    plain = re.sub("[^a-z0-9]+", "_", name.lower()).strip("_")
    return f"index_{plain[:20]}_{secrets.token_hex(4)}"


def _check_place(folder: Path) -> None:
    for place in (folder, *folder.parents):
        if place.is_file():
            raise ValueError(f"{place} is a file, and an index is a folder: choose another --out")
    if not (folder / "index.json").exists():
        check_out_folder(folder, "an index", ("segments", "thumbnails"))
    segments = folder / "segments" / "segments.json"
    if segments.exists() and not (folder / "index.json").exists():
        raise ValueError(
            f"{folder} has vectors but no index.json, which would name their model: delete "
            "the folder, or index into a new one"
        )


def check_reads(system: System, collection: Collection, folder: Path) -> None:
    """Raise a ValueError unless the model reads what the collection has."""
    if isinstance(system.model, PairScorer):
        raise ValueError(system.model.no_embeddings)
    split, reads = collection.split, system.reading.kind
    if reads == "passages":
        raise ValueError("a model of passages has no images to index")
    if not split.image_names:
        return
    if reads == "features" and split.features is None:
        photos = collection.record.get("photos") or collection.record["data"]["source"]
        raise ValueError(
            "this run reads precomputed features, and there are only pictures: index them with "
            f"any CLIP or SigLIP, by its folder or hub name, `"
            f"{command('index', EXAMPLE_MODEL, photos, '--out', folder)}`, or with a run that was "
            "trained with model.backbone"
        )
    if reads == "pictures" and split.images is None:
        raise ValueError(
            "this model reads pictures, and there are only features: index with a run that was "
            "trained on them"
        )


def _check_same(folder: Path, old: IndexRecord, new: IndexRecord) -> None:
    if old.digest != new.digest:
        raise ValueError(
            f"{folder} is an index of another model, {old.model}: vectors of two models cannot be "
            "compared; index into a new folder"
        )
    if identity(old.collection) != identity(new.collection):
        raise ValueError(
            f"{folder} is an index of {_described(old.collection)}, not of "
            f"{_described(new.collection)}: index into a new folder"
        )
    if old.engine != new.engine:
        raise ValueError(
            f"{folder} keeps its vectors in {old.engine or 'its own folder'}: leave --engine "
            "unchanged, or index into a new folder"
        )


def _described(collection: Mapping[str, Any]) -> str:
    if "data" in collection:
        return f"the split {collection['split']} of {collection['data'].get('source', 'scenes')}"
    return str(collection.get("photos") or collection.get("captions"))


def read_record(folder: Path) -> IndexRecord:
    path = folder / "index.json"
    try:
        return IndexRecord.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        found = "is not an index" if folder.exists() else "does not exist"
        made = command("index", "MODEL", "PHOTOS", "--out", folder)
        raise ValueError(f"{folder} {found}: make an index with `{made}`") from error
    except ValidationError as error:
        first = error.errors()[0]
        reason = ": ".join([*map(str, first["loc"]), first["msg"]])
        raise ValueError(
            f"{path} is damaged ({reason}): delete the folder, or index into a new one"
        ) from error


def open_index(folder: Path) -> Index:
    return Index(folder, read_record(folder))


def model_digest(model: Path) -> str:
    """Identify a model by its name on the hub, or else by samples of its files of weights."""
    if is_pretrained(model):
        if not model.exists():
            return str(model)
        files = [model / "config.json", *sorted(model.glob("*.safetensors"))]
    else:
        files = [Run(model).best]
    state = blake2b(digest_size=16)
    for path in files:
        size = path.stat().st_size
        state.update(f"{size} ".encode())
        with path.open("rb") as file:
            for part in range(SAMPLES):
                file.seek(part * max(0, size - SAMPLE_BYTES) // (SAMPLES - 1))
                state.update(file.read(SAMPLE_BYTES))
    return state.hexdigest()
