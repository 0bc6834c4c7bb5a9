"""Tables of the page: results of the comparison, and COCOS at the best checkpoints."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

from markupsafe import Markup, escape

from gradspace.analysis.cocos import Cocos
from gradspace.comparison.entries import Entry, Group
from gradspace.comparison.tables import Column, ResultTable, TableCell, summarise
from gradspace.runs.numbers import ARROWS, SYMBOLS

MEANINGS = {
    "C^q": "contributing negatives per query that has any",
    "C^B": "contributing negatives per batch",
    "C^0": "queries of a batch without any contribution",
    "W-": "summed weight of a query's contributing negatives",
    "W+": "mean weight of a query's positives",
    "C_eff": "effective number of negatives per query",
}
assert set(MEANINGS) == {count.metadata["symbol"] for count in fields(Cocos)}


def cocos_tables(title: str, group: Group) -> list[ResultTable]:
    """Build a table per direction: mean and deviation over batches, averaged over seeds."""
    columns = tuple(Column("", s, 1 if s in ("C^B", "C^0") else 2) for s in SYMBOLS)
    found = []
    for way, arrow in ARROWS.items():
        rows = tuple(
            (objective, tuple(_cell(seeds, f"{way} {symbol}") for symbol in SYMBOLS))
            for objective, seeds in group.items()
        )
        found.append(ResultTable(f"{title}: {arrow}", "objective", columns, rows))
    return found


def _cell(seeds: Sequence[Entry], metric: str) -> TableCell:
    return TableCell(*summarise(seeds, metric), len(seeds))


@dataclass(frozen=True)
class ShownColumn:
    """A column at its position on the page."""

    place: int
    """Index in the table."""
    column: Column
    shown: Literal["always", "narrow", "wide"]
    """Screens that show it."""
    starts: bool
    """Whether it is the first of its group."""


def shown_columns(columns: Sequence[Column]) -> list[ShownColumn]:
    """Order columns with sums last or, on narrow screens, first, so that they need no scrolling."""
    sums = {place for place, column in enumerate(columns) if "rsum" in (column.name, column.group)}
    order: list[tuple[int, Literal["always", "narrow", "wide"]]]
    order = [(place, "wide" if place in sums else "always") for place in range(len(columns))]
    order = [*((place, "narrow") for place in sorted(sums)), *order]
    groups = [(columns[place].group, shown) for place, shown in order]
    return [
        ShownColumn(
            place, columns[place], shown, not number or groups[number] != groups[number - 1]
        )
        for number, (place, shown) in enumerate(order)
    ]


def spans(columns: Sequence[ShownColumn]) -> list[tuple[ShownColumn, int]]:
    """List the first column of each group and the size of the group."""
    starts = [number for number, column in enumerate(columns) if column.starts]
    ends = [*starts[1:], len(columns)]
    return [(columns[start], end - start) for start, end in zip(starts, ends, strict=True)]


def with_symbols(text: str) -> Markup:
    """Typeset the symbols of COCOS, such as C^q, W- and C_eff, where they are whole words."""
    words = "|".join(re.escape(symbol) for symbol in SYMBOLS)
    return Markup(re.sub(rf"(?:^|(?<= ))({words})(?=$|,)", _printed, str(escape(text))))


def _printed(found: re.Match[str]) -> str:
    letter, sign = found[1][0], found[1][1:]
    tag = "sup" if sign.startswith("^") else "sub"
    sign = sign.lstrip("^_").replace("-", "\N{MINUS SIGN}")
    return f"<i>{letter}</i><{tag}>{sign}</{tag}>"
