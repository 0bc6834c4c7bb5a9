"""COCOS as a table: every objective in both directions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from gradspace.analysis.cocos import Cocos, CocosMeter, cocos
from gradspace.analysis.score_file import SavedScores
from gradspace.objectives import Objective

DIRECTIONS = ("image_to_text", "text_to_image")

Counts = Mapping[str, Mapping[str, CocosMeter]]
"""objective name -> direction -> counts."""


def count_contributions(
    objectives: Sequence[Objective], batches: Iterable[SavedScores], epsilon: float
) -> Counts:
    """COCOS of every objective in both directions over batches."""
    counts = {o.name: {direction: CocosMeter() for direction in DIRECTIONS} for o in objectives}
    for batch in batches:
        scores, positives = batch.scores, batch.positives
        for o in objectives:
            counts[o.name]["image_to_text"].update(cocos(o, scores, positives, epsilon))
            counts[o.name]["text_to_image"].update(
                cocos(o, scores.t(), positives.transpose(), epsilon)
            )
    return counts


def cocos_tables(counts: Counts) -> Iterator[Table]:
    """One table per direction."""
    for direction in DIRECTIONS:
        title = direction.replace("_to_", " → ") + ", mean ± standard deviation over batches"
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, pad_edge=False)
        table.add_column("objective", no_wrap=True)
        for count in fields(Cocos):
            table.add_column(count.metadata["symbol"], justify="right", no_wrap=True)
        for name, by_direction in counts.items():
            meter = by_direction[direction]
            table.add_row(name, *(_cell(meter, count) for count in meter))
        yield table


def cocos_json(counts: Counts) -> dict[str, Any]:
    return {
        name: {
            direction: {
                count: dict(zip(("mean", "std"), meter[count], strict=True)) for count in meter
            }
            for direction, meter in by_direction.items()
        }
        for name, by_direction in counts.items()
    }


def _cell(meter: CocosMeter, count: str) -> str:
    mean, deviation = meter[count]
    decimals = 2 if mean < 10 else 1 if mean < 100 else 0
    spread = f"±{deviation:.{decimals}f}" if len(meter) > 1 else ""
    return f"{mean:.{decimals}f}{spread}"
