"""Flips: queries that one run answers and another does not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradspace.runs.numbers import DIRECTIONS
from gradspace.runs.results import Indices, RunResults, check_comparable


@dataclass(frozen=True, eq=False)
class Flips:
    """Queries of one direction, by which of two runs finds a positive in its first k."""

    both: Indices
    only_first: Indices
    only_second: Indices
    neither: Indices


def find_flips(first: RunResults, second: RunResults, k: int = 1) -> dict[str, Flips]:
    """Find i2t, t2i -> flips; queries without a positive are left out."""
    check_comparable([("the first run", first), ("the second run", second)])
    return {way: _flips(first.ranks[way], second.ranks[way], k) for way in DIRECTIONS}


def _flips(first: np.ndarray, second: np.ndarray, k: int) -> Flips:
    asked = np.isfinite(first)
    a, b = first <= k, second <= k
    parts = (a & b, a & ~b, ~a & b, asked & ~a & ~b)
    return Flips(*(part.nonzero()[0] for part in parts))
