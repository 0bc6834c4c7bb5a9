"""Queries that one run answers and the other does not, and the choice of those to show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradspace.comparison.flips import find_flips
from gradspace.runs.results import Floats, RunResults

OUTCOMES = {
    1: ("right", "wrong"),
    2: ("only-a", "only-b", "both", "neither"),
}
"""Outcomes by the number of runs; a query is right if its best positive has rank 1."""
MIX = {
    1: ("right", "wrong"),
    2: ("only-a", "only-b", "only-a", "only-b", "both", "neither"),
}
"""Cycle of outcomes in which queries to show are chosen, by the number of runs."""


def outcome_of(right: Sequence[bool]) -> str:
    """Name the outcome of a query for one or two runs.

    >>> outcome_of([True]), outcome_of([True, False]), outcome_of([False, False])
    ('right', 'only-a', 'neither')
    """
    if len(right) == 1:
        return "right" if right[0] else "wrong"
    if right[0] == right[1]:
        return "both" if right[0] else "neither"
    return "only-a" if right[0] else "only-b"


def queries_by_outcome(sides: Sequence[RunResults]) -> dict[str, dict[str, list[int]]]:
    """Group the queries of one or two runs by direction and outcome; each needs a positive."""
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
    """Choose queries of all outcomes evenly over the test set, so that none are cherry-picked."""
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
