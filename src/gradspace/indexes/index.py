"""An index: a folder that says of which model its vectors are, and which engine holds them.

index.json      the model and its digest, the collection, the engine
segments/       items and vectors, where the engine is the folder itself
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
from gradspace.wording import typed

SAMPLES, SAMPLE_BYTES = 64, 4096
"""Of a file of weights, that tell it from others."""


class IndexRecord(BaseModel):
    """What `index.json` holds."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    format: int = 1
    name: str
    model: str
    """The folder of the run or model, or its name on the hub."""
    digest: str
    """Of the model's weights."""
    width: int
    collection: dict[str, Any]
    kinds: tuple[Kind, ...]
    engine: str | None = None
    """The address of a database; without one the vectors are in the folder."""
    table: str = ""
    """The name of the index in the database."""


def _engine(folder: Path, record: IndexRecord) -> Engine:
    if record.engine is None:
        engine = LocalEngine(folder / "segments", record.width)
        engine.segments()  # what is damaged is known at once
        return engine
    return open_engine(record.engine, record.table, record.width)


class Index:
    """A folder of vectors, thumbnails, and what they are of."""

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
        """Search the engine; where nothing is found, a field that no item has is an error."""
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
        """What was indexed, as it is now."""
        return open_collection(self.record.collection)

    def picture(self, key: str) -> Image.Image:
        """The picture of an item; a KeyError where there is no such item."""
        [found] = self.engine.get([key])
        if found is None:
            raise KeyError(key)
        return self.collection.picture(found[0].image)

    def thumbnail(self, key: str) -> bytes | None:
        """A small JPEG of an image; None where there is no picture of it."""
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
    """A new index, or the one in the folder where it is of the same model and collection."""
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
    """An index of vectors that come from anywhere."""
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
        if len(Index(folder, old).engine):  # an empty one may become the index of anything
            _check_same(folder, old, record)
            record = record.model_copy(update={"name": name or old.name, "table": old.table})
    index = Index(folder, record)
    with write_atomically(folder / "index.json") as file:
        file.write(record.model_dump_json(indent=2) + "\n")
    return index


def _table_name(name: str) -> str:
    """One that no other index has."""
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
            f"{folder} has vectors but no index.json, which says of which model they are: delete "
            "the folder, or index into a new one"
        )


def check_reads(system: System, collection: Collection, folder: Path) -> None:
    """A run on features cannot index one's own photos, but CLIP can."""
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
            f"{folder} keeps its vectors in {old.engine or 'its own folder'}: leave --engine as it "
            "was, or index into a new folder"
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
        found = "is no index" if folder.exists() else "does not exist"
        raise ValueError(
            f"{folder} {found}: make an index with `gradspace index MODEL PHOTOS --out "
            f"{typed(folder)}`"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        reason = ": ".join([*map(str, first["loc"]), first["msg"]])
        raise ValueError(
            f"{path} is damaged ({reason}): delete the folder, or index into a new one"
        ) from error


def open_index(folder: Path) -> Index:
    return Index(folder, read_record(folder))


def model_digest(model: Path) -> str:
    """Another one for other weights: of a hub's model its name, else of parts of the files."""
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
