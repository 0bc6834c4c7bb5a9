"""Tables of the page: those of the comparison, and what contributes at the best checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from itertools import groupby

import numpy as np
from markupsafe import Markup, escape

from gradspace.analysis.cocos import Cocos
from gradspace.comparison.entries import Group
from gradspace.comparison.metrics import ARROWS, SYMBOLS, cocos_metrics
from gradspace.comparison.tables import Cell, Column, ResultTable

MEANINGS = {
    "C^q": "contributing negatives per query that has any",
    "C^B": "contributing negatives per batch",
    "C^0": "queries of a batch without any contribution",
    "W-": "summed weight of a query's contributing negatives",
    "W+": "mean weight of a query's positives",
    "C_eff": "effective number of negatives per query",
}
assert set(MEANINGS) == {count.metadata["symbol"] for count in fields(Cocos)}


def cocos_table(title: str, group: Group) -> ResultTable:
    """Mean and standard deviation over the batches of the training set, averaged over seeds."""
    names = [(way, symbol) for way in ARROWS for symbol in SYMBOLS]
    columns = tuple(
        Column(ARROWS[way], symbol, 1 if symbol in ("C^B", "C^0") else 2) for way, symbol in names
    )
    rows = []
    for objective, seeds in group.items():
        counts = [cocos_metrics(entry.analysis.cocos) for entry in seeds]
        cells = []
        for way, symbol in names:
            mean, std = (
                float(np.mean([count[f"{way} {symbol}"][part] for count in counts]))
                for part in ("mean", "std")
            )
            cells.append(Cell(mean, std, len(seeds)))
        rows.append((objective, tuple(cells)))
    return ResultTable(title, "objective", columns, tuple(rows))


def spans(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """Neighbouring columns of one group: the group, and how many there are.

    >>> spans([Column("a", "x", 1), Column("a", "y", 1), Column("", "z", 1)])
    [('a', 2), ('', 1)]
    """
    return [(group, len(list(found))) for group, found in groupby(columns, lambda c: c.group)]


def with_symbols(text: str) -> Markup:
    """Text with the symbols of COCOS as they are printed: C^q, W- and C_eff."""
    printed = str(escape(text))
    for symbol in SYMBOLS:
        letter, sign = symbol[0], symbol[1:]
        raised = sign.startswith("^")
        tag = "sup" if raised else "sub"
        sign = sign.lstrip("^_").replace("-", "\N{MINUS SIGN}")
        printed = printed.replace(symbol, f"<i>{letter}</i><{tag}>{sign}</{tag}>")
    return Markup(printed)
