"""Tables of COCOS: all objectives in both directions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from gradspace.analysis.cocos import Cocos, CocosMeter, Counting, count
from gradspace.analysis.score_file import SavedScores
from gradspace.objectives import Objective

DIRECTIONS = ("image_to_text", "text_to_image")

Counts = Mapping[str, Mapping[str, CocosMeter]]
"""Counts by objective name and direction."""


def count_contributions(
    objectives: Sequence[Objective], batches: Iterable[SavedScores], counting: Counting
) -> Counts:
    """Count every objective's contributions in both directions over batches."""
    counts = {o.name: {direction: CocosMeter() for direction in DIRECTIONS} for o in objectives}
    for batch in batches:
        scores, positives = batch.scores, batch.positives
        for o in objectives:
            counts[o.name]["image_to_text"].update(count(o, scores, positives, counting))
            counts[o.name]["text_to_image"].update(
                count(o, scores.t(), positives.transpose(), counting)
            )
    return counts


def cocos_tables(counts: Counts) -> Iterator[Table]:
    """Build one table per direction."""
    for direction in DIRECTIONS:
        title = direction.replace("_to_", " → ") + ", mean ± standard deviation over batches"
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, pad_edge=False)
        table.add_column("objective", no_wrap=True)
        for number in fields(Cocos):
            table.add_column(number.metadata["symbol"], justify="right", no_wrap=True)
        for name, by_direction in counts.items():
            meter = by_direction[direction]
            table.add_row(escape(name), *(_cell(meter, number) for number in meter))
        yield table


def cocos_json(counts: Counts) -> dict[str, Any]:
    return {
        name: {
            direction: {
                number: dict(zip(("mean", "std"), meter[number], strict=True)) for number in meter
            }
            for direction, meter in by_direction.items()
        }
        for name, by_direction in counts.items()
    }


def _cell(meter: CocosMeter, name: str) -> str:
    mean, deviation = meter[name]
    decimals = 2 if mean < 10 else 1 if mean < 100 else 0
    spread = f"±{deviation:.{decimals}f}" if len(meter) > 1 else ""
    return f"{mean:.{decimals}f}{spread}"
