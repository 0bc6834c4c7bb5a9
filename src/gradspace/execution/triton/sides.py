"""Both directions of a batch in the layout that kernels over tiles and queries read and write."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from gradspace.execution.block import Sides
from gradspace.execution.triton.launching import Inputs
from gradspace.execution.triton.slots import Slots
from gradspace.execution.triton.whole_rows import functions
from gradspace.objectives.contract import Objective
from gradspace.objectives.statistics import Hardest, PositiveScores, Statistic


@dataclass(frozen=True)
class Side:
    """Queries of one direction, and memory for their results."""

    index: Tensor
    """Candidates of the slots, [queries, slots]; -1 in unused slots."""
    scores: Tensor
    """Scores of the slots, [queries, slots]; infinity in unused slots."""
    wanted: tuple[Statistic, ...]
    slot_slopes: Tensor
    best_slopes: Tensor
    hardest: Tensor
    results: list[Tensor]
    """Results of every sum, [queries, columns] each."""
    slopes: list[Tensor]
    """Derivatives of the value by every sum, [queries, columns] each."""

    @property
    def count(self) -> int:
        return self.scores.shape[1]


def sides_of(objective: Objective, inputs: Inputs, slots: Slots) -> Sides[Side]:
    """Score the positives of both sides, and ask what is wanted of their negatives."""
    by_image = _scores_of_slots(inputs, slots.texts_of_images)
    by_text = by_image
    if not slots.by_position:
        by_text = _scores_of_slots(inputs.transpose(), slots.images_of_texts)
    in_batch = by_image.flatten()
    return Sides(
        side_of(objective, by_image, slots.texts_of_images, inputs.m, in_batch),
        side_of(objective, by_text, slots.images_of_texts, inputs.n, in_batch),
    )


def side_of(
    objective: Objective, scores: Tensor, index: Tensor, num_candidates: int, batch: Tensor
) -> Side:
    found = functions(objective)
    if found is not None and found.fixed:
        wanted = _fixed_statistics(_Same(objective), scores.device)
    else:
        wanted = objective.statistics(positive_of(scores, index, num_candidates, batch))
    n, count = scores.shape
    sums = [one for one in wanted if not isinstance(one, Hardest)]
    columns = [one.given.shape[1] for one in sums]
    return Side(
        index,
        scores,
        wanted,
        slot_slopes=scores.new_empty(n, count),
        best_slopes=scores.new_empty(n, 1),
        hardest=torch.empty(n, 1, dtype=torch.int32, device=scores.device),
        results=[scores.new_empty(n, c) for c in columns],
        slopes=[scores.new_empty(n, c) for c in columns],
    )


class _Same(NamedTuple):
    """An objective compared by identity, not by equality, for use as a cache key."""

    objective: Objective

    def __hash__(self) -> int:
        return id(self.objective)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.objective is other.objective


@lru_cache(maxsize=64)
def _fixed_statistics(same: _Same, device: torch.device) -> tuple[Statistic, ...]:
    """Statistics of an objective that wants the same ones whatever its positives are."""
    one = torch.zeros(1, 1, device=device)
    positive = PositiveScores(one, one == 0, torch.ones_like(one, dtype=torch.long), one.flatten())
    return same.objective.statistics(positive)


def positive_of(
    scores: Tensor, index: Tensor, num_candidates: int, batch: Tensor
) -> PositiveScores:
    """Convert slots to the `PositiveScores` that an objective reads."""
    valid = index >= 0
    num_negatives = num_candidates - valid.sum(1, keepdim=True)
    return PositiveScores(scores.where(valid, 0), valid, num_negatives, batch)


def _scores_of_slots(inputs: Inputs, index: Tensor) -> Tensor:
    from gradspace.execution.triton import query_kernels

    scores = inputs.empty(*index.shape)
    query_kernels.scores_of_slots[tuple(scores.shape)](
        *(inputs.rows, inputs.columns, index, scores, inputs.rows.shape[1]),
        COUNT=index.shape[1],
        WIDTH=256,
        num_warps=1,
    )
    return scores
