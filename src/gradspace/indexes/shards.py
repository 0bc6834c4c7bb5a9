"""Embeddings of a collection in a folder, in shards that can be read without their model.

plan.json                        the model, the collection, and the number of shards
shard-00003-of-00064.arrow       items and their vectors, float32; complete or absent
manifest.json                    written when all shards exist, with their sizes and digests

A shard has a part of the images and a part of the captions, in their order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from gradspace.files import check_is_folder, check_out_folder, write_atomically
from gradspace.indexes.collection import Collection, identity
from gradspace.indexes.contract import Item, Kind
from gradspace.indexes.items import as_table, items_at, open_table

RECORD = b"gradspace"
VECTOR = "vector"
PLAN, MANIFEST = "plan.json", "manifest.json"


class ShardPlan(BaseModel):
    """Contents of `plan.json`."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    format: int = 1
    model: str
    """Folder of the run or model, or its name on the hub."""
    digest: str
    """Digest of the model's weights."""
    width: int
    collection: dict[str, Any]
    num_images: int
    num_captions: int
    items: str
    """Digest of the keys and fingerprints of all items."""
    num_shards: int

    @property
    def kinds(self) -> tuple[Kind, ...]:
        kinds: list[Kind] = ["image"] if self.num_images else []
        return (*kinds, "caption") if self.num_captions else tuple(kinds)

    def shard(self, folder: Path, number: int) -> Path:
        return folder / f"shard-{number:05}-of-{self.num_shards:05}.arrow"

    def shards(self, folder: Path) -> list[Path]:
        return [self.shard(folder, number) for number in range(self.num_shards)]

    @property
    def token(self) -> str:
        """Token that distinguishes shards of this plan from those of another."""
        facts = [self.digest, self.items, self.width, self.num_shards]
        return blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def digest_of(collection: Collection) -> str:
    """Hash the keys and fingerprints of all items."""
    state = blake2b(digest_size=16)
    for item in collection.items:
        state.update(f"{item.key}\0{item.fingerprint}\0".encode())
    return state.hexdigest()


def begin(folder: Path, wanted: ShardPlan) -> None:
    """Write the plan into a new folder, or check that the folder has the same plan."""
    if not (folder / PLAN).exists():
        check_out_folder(folder, "embeddings", own=(PLAN,))  # another process may write it just now
    if (folder / PLAN).exists():
        _check_same(folder, read_plan(folder), wanted)
        return
    with write_atomically(folder / PLAN) as file:
        file.write(wanted.model_dump_json(indent=2) + "\n")


def read_plan(folder: Path) -> ShardPlan:
    check_is_folder(folder, "embeddings that `gradspace embed --shards` writes")
    path = folder / PLAN
    try:
        return ShardPlan.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise ValueError(
            f"{folder} has no {PLAN}: expected embeddings that `gradspace embed --shards` writes"
        ) from error
    except ValidationError as error:
        raise ValueError(f"{path} is damaged: embed into a new folder") from error


def _check_same(folder: Path, old: ShardPlan, new: ShardPlan) -> None:
    if old.digest != new.digest:
        raise ValueError(
            f"{folder} has embeddings of another model, {old.model}: embed into a new folder"
        )
    before, now = (each.num_images + each.num_captions for each in (old, new))
    if identity(old.collection) != identity(new.collection) or old.items != new.items:
        raise ValueError(
            f"{folder} has embeddings of other data, or of the same in an earlier state "
            f"({before:,} items then, {now:,} now): embed into a new folder"
        )
    if old.num_shards != new.num_shards:
        raise ValueError(
            f"{folder} is divided into {old.num_shards} shards, got --shards {new.num_shards}: "
            "leave it out, or embed into a new folder"
        )


# --- a shard ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shard:
    """Items and their vectors, memory-mapped."""

    path: Path
    table: pa.Table
    record: Mapping[str, Any]
    vectors: NDArray[np.float32]

    def items(self, rows: Sequence[int] | NDArray[np.int64]) -> list[Item]:
        return items_at(self.table, rows)

    def check(self) -> None:
        """Raise a ValueError if the content is not what was written."""
        if _digest(self.table, self.vectors) != self.record["digest"]:
            raise _damaged(self.path, "its digest does not match")


def write_shard(
    path: Path,
    plan: ShardPlan,
    items: Sequence[Item],
    vectors: NDArray[np.float32],
    broken: Sequence[str],
) -> None:
    table = as_table(items)
    record = {
        "plan": plan.token,
        "images": sum(item.kind == "image" for item in items),
        "captions": sum(item.kind == "caption" for item in items),
        "broken": list(broken),
        "digest": _digest(table, vectors),
    }
    rows = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), plan.width)
    table = table.append_column(VECTOR, rows)
    table = table.replace_schema_metadata({RECORD: json.dumps(record).encode()})
    with write_atomically(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def open_shard(path: Path, plan: ShardPlan) -> Shard:
    """Open a shard without reading all of it; a ValueError if it is missing or damaged."""
    try:
        table = open_table(path)
        record = json.loads(table.schema.metadata[RECORD])
        if record["plan"] != plan.token:
            raise ValueError("it belongs to other embeddings")
        column = table[VECTOR].combine_chunks()
        vectors = column.values.to_numpy().reshape(-1, plan.width)
    except FileNotFoundError as error:
        raise ValueError(f"{path} is missing: run the same `gradspace embed` again") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, " ".join(str(error).split())) from error
    return Shard(path, table.drop_columns([VECTOR]), record, vectors)


def _digest(table: pa.Table, vectors: NDArray[np.float32]) -> str:
    state = blake2b(np.ascontiguousarray(vectors).data, digest_size=16)
    for name in table.column_names:
        state.update("\0".join(map(str, table[name].to_pylist())).encode())
    return state.hexdigest()


def _damaged(path: Path, reason: str) -> ValueError:
    return ValueError(
        f"{path} is damaged ({reason}): delete it, and run the same `gradspace embed` again"
    )


# --- the manifest -------------------------------------------------------------------------------


def write_manifest(folder: Path, plan: ShardPlan) -> dict[str, Any]:
    """Write the manifest once all shards exist; every process would write the same."""
    opened = [open_shard(path, plan) for path in plan.shards(folder)]
    keys = ("images", "captions", "digest")
    manifest = {
        "plan": plan.model_dump(mode="json"),
        "images": sum(shard.record["images"] for shard in opened),
        "captions": sum(shard.record["captions"] for shard in opened),
        "broken": [reason for shard in opened for reason in shard.record["broken"]],
        "shards": [
            {"file": shard.path.name, **{key: shard.record[key] for key in keys}}
            for shard in opened
        ],
    }
    with write_atomically(folder / MANIFEST) as file:
        json.dump(manifest, file, indent=2)
        file.write("\n")
    return manifest


def complete_plan(folder: Path) -> ShardPlan:
    """Return the plan of a complete folder; otherwise a ValueError says how much is missing."""
    plan = read_plan(folder)
    there = sum(path.exists() for path in plan.shards(folder))
    if there < plan.num_shards:
        raise ValueError(
            f"{folder} has {there} of {plan.num_shards} shards: run the same `gradspace embed` "
            "again to fill the others"
        )
    return plan
