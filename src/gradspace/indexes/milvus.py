"""Index in Milvus, a vector database for many machines, or in a file, with Milvus Lite.

Every index has a separate collection. Search compares all vectors and is exact, unless `hnsw` asks
for that index. Items are sent in requests of PUT_AT_ONCE, and a search in between sees those that
have arrived.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray
from pymilvus import DataType, MilvusClient, MilvusException

from gradspace.indexes.contract import Hit, Item, Kind, Vectors
from gradspace.indexes.stored import (
    as_json,
    check_collection,
    check_condition,
    check_items,
    compared_with,
    folded,
)
from gradspace.indexes.where import Condition
from gradspace.nearest.faiss import HNSW_BUILD_EFFORT, HNSW_NEIGHBOURS

TOKEN = "MILVUS_TOKEN"
"""Environment variable for credentials: user:password, or a key."""
TIMEOUT = 60.0
PUT_AT_ONCE = 500
ASKED_AT_ONCE = 1_000
MOST_HITS = 16_384
LONGEST_TEXT = 65_535
"""Longest text in bytes of UTF-8; also for metadata, as JSON."""
TEXTS = ("key", "kind", "text", "image", "fingerprint")
COLUMNS = [*TEXTS, "metadata"]
HNSW = {"M": HNSW_NEIGHBOURS, "efConstruction": HNSW_BUILD_EFFORT}
EFFORT = 200
"""Candidates that HNSW keeps during a search, or twice the number of results if that is more."""
WILDCARDS = str.maketrans("%_\\", "\ufdd0\ufdd1\ufdd2")
"""Replacements for characters whose escapes differ between servers: in folded texts, code points
that Unicode reserves as noncharacters stand for them."""

ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"})


class MilvusEngine:
    """Items in the collection `gradspace_<collection>` at http://host:19530, or of a file *.db."""

    def __init__(
        self,
        uri: str,
        collection: str,
        width: int,
        *,
        hnsw: bool = False,
        shards: int = 1,
        replicas: int = 1,
    ) -> None:
        self._uri = _check_uri(uri)
        self._width, self._hnsw = width, hnsw
        self._name = f"gradspace_{check_collection(collection)}"
        # Its errors become sentences, and need not be logged as well.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        with self._explained():
            self._client = MilvusClient(uri, token=os.environ.get(TOKEN, ""), timeout=TIMEOUT)
            try:
                if self._client.has_collection(self._name):
                    self._check_width()
                else:
                    self._create(shards)
                self._client.load_collection(self._name, replica_number=replicas)
            except BaseException:
                self._client.close()
                raise

    def __len__(self) -> int:
        with self._explained():
            found = self._client.query(self._name, output_fields=["count(*)"], timeout=TIMEOUT)
            return int(found[0]["count(*)"])

    def put(self, items: Sequence[Item], vectors: Vectors) -> None:
        halves = check_items(items, vectors, self._width)
        rows = [_row(item, vector) for item, vector in zip(items, halves, strict=True)]
        with self._explained():
            for some in _parts(rows, PUT_AT_ONCE):
                self._client.upsert(self._name, some, timeout=TIMEOUT)

    def remove(self, keys: Sequence[str]) -> None:
        with self._explained():
            for some in _parts([_id(key) for key in keys], ASKED_AT_ONCE):
                self._client.delete(self._name, ids=some, timeout=TIMEOUT)

    def fingerprints(self) -> dict[str, str]:
        return {row["key"]: row["fingerprint"] for row in self._rows("key", "fingerprint")}

    def fields(self) -> set[str]:
        return {name for row in self._rows("metadata") for name in row["metadata"]}

    def _rows(self, *columns: str) -> Iterator[dict[str, Any]]:
        """Yield columns of all items."""
        with self._explained():
            pages = self._client.query_iterator(
                self._name,
                batch_size=ASKED_AT_ONCE,
                output_fields=list(columns),
                timeout=TIMEOUT,
            )
            while page := pages.next():
                yield from page
            pages.close()

    def get(self, keys: Sequence[str]) -> list[tuple[Item, NDArray[np.float32]] | None]:
        found = dict[str, tuple[Item, NDArray[np.float32]]]()
        with self._explained():
            for some in _parts([_id(key) for key in keys], ASKED_AT_ONCE):
                fields = [*COLUMNS, "vector"]
                for row in self._client.get(self._name, some, fields, timeout=TIMEOUT):
                    found[row["key"]] = _item(row), np.asarray(row["vector"], np.float32)
        return [found.get(key) for key in keys]

    def search(
        self, queries: NDArray[np.float32], k: int, kind: Kind, where: Sequence[Condition] = ()
    ) -> list[list[Hit]]:
        if queries.shape[1:] != (self._width,):
            raise ValueError(f"queries are {queries.shape[1:]} wide, for an index of {self._width}")
        if k > MOST_HITS:
            raise ValueError(f"Milvus finds at most {MOST_HITS:,} items at a time; got k={k:,}")
        if not len(queries):
            return []
        with self._explained():
            found = self._client.search(
                self._name,
                data=list(queries),
                limit=k,
                filter=" and ".join([f"kind == {_quoted(kind)}", *map(_as_filter, where)]),
                output_fields=COLUMNS,
                timeout=TIMEOUT,
                search_params={"params": {"ef": max(EFFORT, 2 * k)} if self._hnsw else {}},
            )
        return [[Hit(_item(hit["entity"]), hit["distance"]) for hit in hits] for hits in found]

    def close(self) -> None:
        self._client.close()
        if self._uri.endswith(".db"):  # its server is a thread of this process
            from milvus_lite.server_manager import server_manager_instance

            server_manager_instance.release_server(self._uri)

    def _create(self, shards: int) -> None:
        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=32)
        for name in TEXTS:
            schema.add_field(name, DataType.VARCHAR, max_length=LONGEST_TEXT)
        for name in ("metadata", "folded"):
            schema.add_field(name, DataType.JSON)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=self._width)
        index = self._client.prepare_index_params()
        index.add_index(
            "vector",
            index_type="HNSW" if self._hnsw else "FLAT",
            metric_type="IP",
            params=HNSW if self._hnsw else {},
        )
        self._client.create_collection(
            self._name, schema=schema, num_shards=shards, consistency_level="Strong"
        )
        self._client.create_index(self._name, index, sync=False)  # it is still empty

    def _check_width(self) -> None:
        fields = self._client.describe_collection(self._name)["fields"]
        width = next(int(f["params"]["dim"]) for f in fields if f["name"] == "vector")
        if width != self._width:
            raise ValueError(
                f"the collection {self._name} has vectors of width {width}, and this model's have "
                f"{self._width}: use a separate collection for another model"
            )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors of the database into a sentence."""
        try:
            yield
        except MilvusException as error:
            raise ValueError(
                f"Milvus at {self._uri} says: {' '.join(str(error.message).split())}; check that "
                f"it is running, and that {TOKEN} is right"
            ) from error


def _check_uri(uri: str) -> str:
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") and not uri.endswith(".db"):
        raise ValueError(
            "an index in Milvus is at http://host:19530 or https://host, or in a file *.db"
        )
    if parts.username or parts.password:
        raise ValueError(
            "the URL has a user or a password, which would be written into index.json: leave them "
            f"out and set the environment variable {TOKEN} to user:password"
        )
    return uri


def _parts(rows: list[Any], size: int) -> Iterator[list[Any]]:
    return (rows[start : start + size] for start in range(0, len(rows), size))


def _id(key: str) -> str:
    """Make an id of fixed length, without characters that are special in filters."""
    return blake2b(key.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _row(item: Item, vector: NDArray[np.float16]) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(item, name) for name in TEXTS}
    row["metadata"] = as_json(item)
    row["folded"] = {name: text.translate(WILDCARDS) for name, text in folded(item).items()}
    for name, value in row.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if len(text.encode()) > LONGEST_TEXT:
            raise ValueError(
                f"{name} of the item {item.key!r} has {len(text.encode()):,} bytes, and Milvus "
                f"allows {LONGEST_TEXT:,}: shorten it"
            )
    return {"id": _id(item.key), "vector": vector.astype(np.float32), **row}


def _item(row: dict[str, Any]) -> Item:
    return Item(*(row[name] for name in COLUMNS))


def _as_filter(condition: Condition) -> str:
    """Translate `Condition.is_met`; a text and a number are never equal, less or greater.

    "!=" becomes "less or greater", since for servers it holds if the field is missing.
    """
    check_condition(condition)
    field, number = f"metadata[{_quoted(condition.field)}]", compared_with(condition)
    if condition.comparison == "~":
        field = f"folded[{_quoted(condition.field)}]"
        part = condition.value.casefold().translate(WILDCARDS)
        return f"{field} like {_quoted(f'%{part}%')}" if part else f'{field} >= ""'
    either = [_compared(field, condition.comparison, _quoted(condition.value))]
    if number is True:
        either.append(f"{field} <= 0 or {field} > 0")
    elif number is not False:
        either.append(_compared(field, condition.comparison, repr(number)))
    return f"({' or '.join(either)})"


def _quoted(text: str) -> str:
    """Quote a text with the escapes that every server knows."""
    return f'"{text.translate(ESCAPES)}"'


def _compared(field: str, comparison: str, value: str) -> str:
    if comparison == "!=":
        return f"{field} < {value} or {field} > {value}"
    return f"{field} {'==' if comparison == '=' else comparison} {value}"
