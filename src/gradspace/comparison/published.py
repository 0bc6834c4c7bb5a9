"""Published numbers: a CSV beside a recipe, with one line per number of the paper."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradspace.runs.numbers import check_metric

COLUMNS = ("table", "row", "dataset", "model", "objective", "metric", "mean", "std", "note")


@dataclass(frozen=True)
class Published:
    """One number of a paper; std is None if the paper gives none."""

    table: str
    row: str
    dataset: str
    model: str
    objective: str
    metric: str
    mean: float
    std: float | None
    note: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.dataset, self.model, self.objective, self.metric


def load_published(path: Path) -> list[Published]:
    """Read the numbers of a file, checked line by line."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"the published numbers {path} cannot be read: {error}") from error
    reader = csv.DictReader(text.splitlines())
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise ValueError(f"{path} must have the columns {', '.join(COLUMNS)}")
    found = []
    for number, line in enumerate(reader, 2):
        try:
            check_metric(line["metric"])
            std = float(line["std"]) if line["std"] else None
            values: dict[str, Any] = {**line, "mean": float(line["mean"]), "std": std}
            found.append(Published(**values))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    return found
