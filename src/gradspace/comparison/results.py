"""Table results.parquet of a comparison: one row per run and metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow

from gradspace.runs.results import read_parquet, write_parquet


@dataclass(frozen=True)
class Row:
    """One number of a run: a row of results.parquet."""

    dataset: str
    model: str
    objective: str
    seed: int
    split: str
    """Split it was measured on: test, dev, train; with folds `test-5-folds`."""
    metric: str
    value: float
    std: float | None
    """Deviation over batches, if the metric is counted batch by batch."""
    run: str


def save_table(path: Path, rows: Sequence[Row]) -> None:
    """Write results.parquet, for pandas, polars, DuckDB and `load_table`."""
    schema = pyarrow.schema(
        [
            *((name, pyarrow.string()) for name in ("dataset", "model", "objective")),
            ("seed", pyarrow.int64()),
            *((name, pyarrow.string()) for name in ("split", "metric")),
            *((name, pyarrow.float64()) for name in ("value", "std")),
            ("run", pyarrow.string()),
        ]
    )
    write_parquet(path, pyarrow.Table.from_pylist([vars(row) for row in rows], schema), {})


def load_table(path: Path) -> list[Row]:
    table, _ = read_parquet(path, tuple(Row.__dataclass_fields__))
    return [Row(**row) for row in table.to_pylist()]
