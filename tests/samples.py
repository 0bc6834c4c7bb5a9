"""Names of all objectives and random batches, for tests anywhere."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

import gradspace as gs
from gradspace.objectives.registry import PAIR_WEIGHTS, TRIPLET_WEIGHTS
from gradspace.objectives.statistics import PositiveScores

NAMES = [info.name for info in gs.list_objectives()]
GOAL_NAMES = [name for name in NAMES if "/" in name]
OFFLINE_NAMES = [name for name in NAMES if gs.objective(name).uses_offline]
"""With mined negatives: see test_offline.py."""
LOSS_NAMES = [name for name in NAMES if "/" not in name and name not in OFFLINE_NAMES]


def statistics_of(name: str) -> Hashable:
    """What an execution computes for an objective: kinds of statistics, and their formulas."""
    one = torch.ones(1, 1)
    wanted = gs.objective(name).statistics(PositiveScores(one, one.bool(), one.long(), one[0]))
    return tuple((type(s), getattr(getattr(s, "term", None), "__code__", None)) for s in wanted)


STATISTICS = list({statistics_of(name): name for name in NAMES}.values())
"""One objective for everything that executions compute; the others ask for the same."""


def cells_of_all_weights() -> list[str]:
    """As few GOAL objectives as have every triplet weight and every pair weight."""
    triplets, pairs = list(TRIPLET_WEIGHTS), list(PAIR_WEIGHTS)
    return [
        f"{triplets[i % len(triplets)]}/{pairs[i % len(pairs)]}"
        for i in range(max(len(triplets), len(pairs)))
    ]


FORMULAS = [*(name for name in NAMES if "/" not in name), *cells_of_all_weights()]
"""Every loss and every weight, each of which is code of its own."""


def random_batch(
    seed: int, num_queries: int = 7, num_candidates: int = 11, ties: bool = False
) -> tuple[Tensor, Tensor]:
    """float64 scores in [-1, 1] and positives: none, one, several and all of the candidates."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(num_queries, num_candidates, generator=generator, dtype=torch.float64)
    scores = scores * 1.6 - 0.6
    if ties:
        scores = (scores * 5).round() / 5
    positives = torch.rand(num_queries, num_candidates, generator=generator) < 0.2
    positives[0] = False
    positives[1] = torch.arange(num_candidates) == 3
    if num_queries > 2:
        positives[2] = True
    return scores, positives


Batch = Callable[..., tuple[Tensor, Tensor]]
