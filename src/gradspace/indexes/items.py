"""Items as a table on disk: memory-mapped, and filtered by columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import reduce
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gradspace.indexes.contract import Item
from gradspace.indexes.where import Condition

PLAIN = ("key", "kind", "text", "image", "fingerprint")
NUMBER, TEXT = "number ", "text "
"""Prefixes of the columns that repeat the metadata for conditions."""
COMPUTED = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def as_table(items: Sequence[Item]) -> pa.Table:
    columns = {name: [getattr(item, name) for item in items] for name in PLAIN}
    columns["metadata"] = [json.dumps(dict(item.metadata)) for item in items]
    types = dict.fromkeys(columns, pa.string())
    for name in sorted({name for item in items for name in item.metadata}):
        values = [item.metadata.get(name) for item in items]
        texts = [value if isinstance(value, str) else None for value in values]
        numbers = [None if isinstance(v, str) or v is None else float(v) for v in values]
        if any(text is not None for text in texts):
            columns[TEXT + name], types[TEXT + name] = texts, pa.string()
        if any(number is not None for number in numbers):
            columns[NUMBER + name], types[NUMBER + name] = numbers, pa.float64()
    return pa.table({name: pa.array(columns[name], types[name]) for name in columns})


def write_table(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def open_table(path: Path) -> pa.Table:
    """Open a table memory-mapped: only accessed parts are read."""
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def items_at(table: pa.Table, rows: Sequence[int] | NDArray[np.int64]) -> list[Item]:
    found = table.select([*PLAIN, "metadata"]).take(pa.array(rows, pa.int64())).to_pylist()
    return [Item(**{**row, "metadata": json.loads(row["metadata"])}) for row in found]


def fields_of(table: pa.Table) -> set[str]:
    """Return the names of the metadata that its items have."""
    held = [(name, start) for name in table.column_names for start in (NUMBER, TEXT)]
    return {name.removeprefix(start) for name, start in held if name.startswith(start)}


def rows_of(table: pa.Table, keys: Sequence[str]) -> NDArray[np.int64]:
    """Find the rows of items with any of the keys."""
    return np.flatnonzero(pc.is_in(table["key"], pa.array(keys, pa.string())).to_numpy())


def rows_that_meet(table: pa.Table, where: Sequence[Condition]) -> NDArray[np.bool_]:
    """Compute bool [items]: whether all conditions are met, by the rules of `Condition`."""
    masks = [_meets(table, condition) for condition in where]
    return reduce(np.logical_and, masks, np.ones(len(table), np.bool_))


def _meets(table: pa.Table, condition: Condition) -> NDArray[np.bool_]:
    met = np.zeros(len(table), np.bool_)
    text, number = TEXT + condition.field, NUMBER + condition.field
    if text in table.column_names:
        met |= _true(_compare_texts(table[text], condition))
    if number in table.column_names and condition.number is not None:
        met |= _true(COMPUTED[condition.comparison](table[number], condition.number))
    return met


def _compare_texts(texts: pa.ChunkedArray, condition: Condition) -> pa.ChunkedArray:
    if condition.comparison != "~":
        return COMPUTED[condition.comparison](texts, condition.value)
    distinct = pc.unique(texts)  # usually few, and Python knows how to fold their case
    is_met = [Condition.is_met(condition, {condition.field: t.as_py()}) for t in distinct]
    return pc.is_in(texts, distinct.filter(pa.array(is_met, pa.bool_())))


def _true(mask: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Treat unknown values as false."""
    return np.asarray(pc.fill_null(mask, False))
