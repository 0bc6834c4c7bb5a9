"""Tables of the page: those of the comparison, and what contributes at the best checkpoints."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from itertools import groupby

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
    """One table per direction: mean and deviation over the batches, averaged over seeds."""
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


def spans(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """Neighbouring columns of one group: the group, and how many there are.

    >>> spans([Column("a", "x", 1), Column("a", "y", 1), Column("", "z", 1)])
    [('a', 2), ('', 1)]
    """
    return [(group, len(list(found))) for group, found in groupby(columns, lambda c: c.group)]


def with_symbols(text: str) -> Markup:
    """Text with the symbols of COCOS as they are printed: C^q, W- and C_eff, as words of theirs."""
    words = "|".join(re.escape(symbol) for symbol in SYMBOLS)
    return Markup(re.sub(rf"(?:^|(?<= ))({words})(?=$|,)", _printed, str(escape(text))))


def _printed(found: re.Match[str]) -> str:
    letter, sign = found[1][0], found[1][1:]
    tag = "sup" if sign.startswith("^") else "sub"
    sign = sign.lstrip("^_").replace("-", "\N{MINUS SIGN}")
    return f"<i>{letter}</i><{tag}>{sign}</{tag}>"
