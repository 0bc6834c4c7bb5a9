"""Index in PostgreSQL with pgvector: many readers on many machines, and ordinary backups.

Every index has a separate table. Vectors are `halfvec`, 2 bytes per number: up to 16,000 wide, or
up to 4,000 wide with an HNSW index. Search compares all vectors and is exact, unless `hnsw` asks
for the index.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString, get_args

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector
from psycopg import Connection, Cursor, sql
from psycopg.types.json import Jsonb

from gradspace.indexes.contract import Hit, Item, Kind, Vectors
from gradspace.indexes.postgres_connection import check_url, connect, explained
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

WIDEST = 16_000
WIDEST_IN_HNSW = 4_000
EFFORT = 200
"""Candidates that HNSW keeps, or twice the number of results if that is more, up to 1,000."""
BY_INDEX = "vector <#> %s"
EXACTLY = "-(vector <#> %s) DESC, key"
"""Order by an equivalent expression that no index covers."""
STREAMED_AT_ONCE = 10_000
COLUMNS = ("key", "kind", "text", "image", "fingerprint", "metadata")
TYPES = ("text", "text", "text", "text", "text", "jsonb", "jsonb", "halfvec")


class PostgresEngine:
    """Items in the table `gradspace_<collection>` of the database at a URL.

    After a lost connection, the call after the failed one connects again. Any number of threads may
    share an engine; they take turns.
    """

    def __init__(self, url: str, collection: str, width: int, *, hnsw: bool = False) -> None:
        self._parts = check_url(url)
        self._width, self._hnsw = width, hnsw
        self._name = f"gradspace_{check_collection(collection)}"
        self._table = sql.Identifier(self._name)
        self._lock = threading.Lock()
        _check_width(width, hnsw)
        with explained(self._parts):
            self._connection = self._connect()

    def __len__(self) -> int:
        with self._transaction() as connection:
            found = self._ask(connection, "SELECT count(*) FROM {table}").fetchone()
            return int(found[0]) if found else 0

    def put(self, items: Sequence[Item], vectors: Vectors) -> None:
        halves = check_items(items, vectors, self._width)
        copied = sql.SQL("COPY {} ({}, folded, vector) FROM STDIN (FORMAT BINARY)").format(
            self._table, _names(COLUMNS)
        )
        with self._transaction() as connection:
            self._remove(connection, [item.key for item in items])
            with connection.cursor().copy(copied) as copy:
                copy.set_types(TYPES)
                for item, vector in zip(items, halves, strict=True):
                    copy.write_row(_row(item, vector))

    def remove(self, keys: Sequence[str]) -> None:
        with self._transaction() as connection:
            self._remove(connection, keys)

    def fingerprints(self) -> dict[str, str]:
        asked = sql.SQL("SELECT key, fingerprint FROM {}").format(self._table)
        with self._transaction() as connection, connection.cursor("fingerprints") as cursor:
            cursor.itersize = STREAMED_AT_ONCE
            return dict(cursor.execute(asked))

    def fields(self) -> set[str]:
        with self._transaction() as connection:
            asked = "SELECT DISTINCT jsonb_object_keys(metadata) FROM {table}"
            return {name for (name,) in self._ask(connection, asked)}

    def get(self, keys: Sequence[str]) -> list[tuple[Item, NDArray[np.float32]] | None]:
        with self._transaction() as connection:
            rows = self._ask(
                connection,
                "SELECT {columns}, vector FROM {table} WHERE key = ANY(%s)",
                [list(keys)],
            )
            found = {r[0]: (Item(*r[:-1]), r[-1].to_numpy().astype(np.float32)) for r in rows}
        return [found.get(key) for key in keys]

    def search(
        self, queries: NDArray[np.float32], k: int, kind: Kind, where: Sequence[Condition] = ()
    ) -> list[list[Hit]]:
        if queries.shape[1:] != (self._width,):
            raise ValueError(f"queries are {queries.shape[1:]} wide, for an index of {self._width}")
        with self._transaction() as connection:
            return [self._search(connection, query, k, kind, where) for query in queries]

    def close(self) -> None:
        self._connection.close()

    def _search(
        self,
        connection: Connection,
        query: NDArray[np.float32],
        k: int,
        kind: Kind,
        where: Sequence[Condition],
    ) -> list[Hit]:
        if self._hnsw:
            effort = min(1_000, max(EFFORT, 2 * k))
            connection.execute(f"SET LOCAL hnsw.ef_search = {effort:d}")
            connection.execute("SET LOCAL hnsw.iterative_scan = strict_order")
            hits = self._nearest(connection, query, k, kind, where, BY_INDEX)
            if len(hits) == k:
                return hits
        return self._nearest(connection, query, k, kind, where, EXACTLY)

    def _nearest(
        self,
        connection: Connection,
        query: NDArray[np.float32],
        k: int,
        kind: Kind,
        where: Sequence[Condition],
        order: LiteralString,
    ) -> list[Hit]:
        # The kind is not a parameter, so that the planner finds the index of one kind.
        conditions: list[sql.Composable] = [sql.SQL("kind = {}").format(sql.Literal(kind))]
        parameters: list[Any] = []
        for condition in where:
            conditions.append(sql.SQL(_as_sql(condition, parameters)))
        vector = HalfVector(query)
        rows = self._ask(
            connection,
            "SELECT {columns}, -(vector <#> %s) FROM {table} WHERE {conditions} "
            f"ORDER BY {order} LIMIT %s",
            [vector, *parameters, vector, k],
            conditions=sql.SQL(" AND ").join(conditions),
        )
        return [Hit(Item(*row[:-1]), row[-1]) for row in rows]

    def _remove(self, connection: Connection, keys: Sequence[str]) -> None:
        self._ask(connection, "DELETE FROM {table} WHERE key = ANY(%s)", [list(keys)])

    def _ask(
        self,
        connection: Connection,
        template: str,
        parameters: Sequence[Any] = (),
        **parts: sql.Composable,
    ) -> Cursor:
        query = sql.SQL(template).format(table=self._table, columns=_names(COLUMNS), **parts)
        return connection.execute(query, parameters)

    def _connect(self) -> Connection:
        connection = connect(self._parts)
        try:
            with connection.transaction():
                self._create_table(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._lock, explained(self._parts):
            if self._connection.closed:
                self._connection = self._connect()
            with self._connection.transaction():
                yield self._connection

    def _create_table(self, connection: Connection) -> None:
        found = connection.execute(
            "SELECT atttypmod FROM pg_attribute WHERE attrelid = to_regclass(%s) "
            "AND attname = 'vector'",
            [self._name],
        ).fetchone()
        if found and found[0] != self._width:
            raise ValueError(
                f"the table {self._name} has vectors of width {found[0]}, and this model's have "
                f"{self._width}: use a separate collection for another model"
            )
        if not found:
            self._ask(
                connection,
                'CREATE TABLE {table} (key text COLLATE "C" PRIMARY KEY, kind text NOT NULL, '
                "text text NOT NULL, image text NOT NULL, fingerprint text NOT NULL, "
                "metadata jsonb NOT NULL, folded jsonb NOT NULL, "
                "vector halfvec({width}) NOT NULL) WITH (toast_tuple_target = 8160)",
                width=sql.Literal(self._width),
            )
            # Vectors are stored in their rows, where a search reads them fastest.
            self._ask(connection, "ALTER TABLE {table} ALTER vector SET STORAGE MAIN")
        for kind in get_args(Kind) if self._hnsw else ():
            self._ask(
                connection,
                "CREATE INDEX IF NOT EXISTS {index} ON {table} USING hnsw "
                "(vector halfvec_ip_ops) WITH (m = {m}, ef_construction = {effort}) "
                "WHERE kind = {kind}",
                m=sql.Literal(HNSW_NEIGHBOURS),
                effort=sql.Literal(HNSW_BUILD_EFFORT),
                index=sql.Identifier(f"{self._name}_{kind}"),
                kind=sql.Literal(kind),
            )


def _names(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))


def _row(item: Item, vector: NDArray[np.float16]) -> tuple[Any, ...]:
    texts = (item.key, item.kind, item.text, item.image, item.fingerprint)
    return (*texts, Jsonb(as_json(item)), Jsonb(folded(item)), HalfVector(vector))


def _as_sql(condition: Condition, parameters: list[Any]) -> str:
    """Translate `Condition.is_met`; by CASE, since AND may cast a text before testing its type.

    Texts are compared by code points, as in Python, in every locale of the database.
    """
    check_condition(condition)
    field, number = condition.field, compared_with(condition)
    if condition.comparison == "~":
        text = 'strpos((folded->>%s::text) COLLATE "C", %s::text) > 0'
        parameters += [field, field, condition.value.casefold()]
    else:
        operator = "<>" if condition.comparison == "!=" else condition.comparison
        text = f'(metadata->>%s::text) COLLATE "C" {operator} %s::text'
        parameters += [field, field, condition.value]
    if isinstance(number, bool):
        compared = str(number)
    else:
        compared = f"(metadata->>%s::text)::float8 {operator} %s::float8"
        parameters += [field, number]
    return (
        f"CASE jsonb_typeof(metadata->%s::text) WHEN 'string' THEN {text} "
        f"WHEN 'number' THEN {compared} ELSE false END"
    )


def _check_width(width: int, hnsw: bool) -> None:
    widest = WIDEST_IN_HNSW if hnsw else WIDEST
    if width > widest:
        instead = "search without hnsw" if width <= WIDEST else "use another engine"
        raise ValueError(
            f"pgvector supports vectors of width up to {widest:,}{' in HNSW' if hnsw else ''}, and "
            f"this model's have {width:,}: {instead}"
        )
