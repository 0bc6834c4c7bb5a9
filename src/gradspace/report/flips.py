"""Which queries one run answers and the other does not, and which of them to show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradspace.comparison.flips import find_flips
from gradspace.runs.results import Floats, RunResults

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


def queries_by_outcome(sides: Sequence[RunResults]) -> dict[str, dict[str, list[int]]]:
    """i2t, t2i -> outcome -> queries, of one or two runs; those without a positive are in none."""
    if len(sides) == 1:
        return {way: _right_and_wrong(ranks) for way, ranks in sides[0].ranks.items()}
    first, second = sides
    found = find_flips(first, second)
    return {
        way: {
            "only-a": flips.only_first.tolist(),
            "only-b": flips.only_second.tolist(),
            "both": flips.both.tolist(),
            "neither": flips.neither.tolist(),
        }
        for way, flips in found.items()
    }


def _right_and_wrong(ranks: Floats) -> dict[str, list[int]]:
    wrong = (ranks > 1) & np.isfinite(ranks)
    return {"right": np.flatnonzero(ranks <= 1).tolist(), "wrong": np.flatnonzero(wrong).tolist()}


def choose_queries(by_outcome: dict[str, list[int]], most: int) -> list[int]:
    """A mix of all outcomes, evenly taken from the test set, so that nobody picks the nice ones."""
    mix = MIX[len(by_outcome) // 2]
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
