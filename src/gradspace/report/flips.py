"""Which queries one run answers and the other does not, and which of them to show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

OUTCOMES = {
    1: ("right", "wrong"),
    2: ("only-a", "only-b", "both", "neither"),
}
"""By the number of runs; a query is right where its best positive has rank 1."""
MIX = {
    1: ("right", "wrong"),
    2: ("only-a", "only-b", "only-a", "only-b", "both", "neither"),
}
"""How the queries to show are mixed, over and over."""


def outcome_of(right: Sequence[bool]) -> str:
    """What one or two runs make of a query.

    >>> outcome_of([True]), outcome_of([True, False]), outcome_of([False, False])
    ('right', 'only-a', 'neither')
    """
    if len(right) == 1:
        return "right" if right[0] else "wrong"
    if right[0] == right[1]:
        return "both" if right[0] else "neither"
    return "only-a" if right[0] else "only-b"


def queries_by_outcome(ranks: Sequence[Floats]) -> dict[str, list[int]]:
    """outcome -> queries, of the ranks of one or two runs; queries without a positive are in none.

    >>> queries_by_outcome([np.array([1.0, 3.0]), np.array([2.0, 1.0])])
    {'only-a': [0], 'only-b': [1], 'both': [], 'neither': []}
    """
    found: dict[str, list[int]] = {outcome: [] for outcome in OUTCOMES[len(ranks)]}
    for query, of_runs in enumerate(zip(*ranks, strict=True)):
        if np.isfinite(of_runs).all():
            found[outcome_of([bool(rank <= 1) for rank in of_runs])].append(query)
    return found


def choose_queries(by_outcome: dict[str, list[int]], most: int) -> list[int]:
    """A mix of all outcomes, evenly taken from the test set, so that nobody picks the nice ones."""
    mix = MIX[len(by_outcome) // 2 if len(by_outcome) > 2 else 1]
    wanted = dict.fromkeys(by_outcome, 0)
    most = min(most, sum(map(len, by_outcome.values())))
    while sum(wanted.values()) < most:
        for outcome in mix:
            if wanted[outcome] < len(by_outcome[outcome]) and sum(wanted.values()) < most:
                wanted[outcome] += 1
    chosen = []
    for outcome, queries in by_outcome.items():
        places = (np.arange(wanted[outcome]) + 0.5) * len(queries) / max(wanted[outcome], 1)
        chosen += [queries[int(place)] for place in places]
    return chosen
