"""Both directions of a batch in the layout that kernels over tiles and queries read and write."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from gradspace.execution.block import Sides
from gradspace.execution.triton.launching import Inputs, ceil
from gradspace.execution.triton.slots import Slots
from gradspace.execution.triton.whole_rows import functions
from gradspace.objectives.contract import Objective
from gradspace.objectives.statistics import Hardest, LogSumExp, PositiveScores, Statistic

AT_ONCE = 4
"""Queries whose positives a program scores."""


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


def sides_of(objective: Objective, inputs: Inputs, slots: Slots, finished: Tensor) -> Sides[Side]:
    """Score the positives of both sides, and ask what is wanted of their negatives.

    `finished` is set to 0, for `query_kernels.finish`.
    """
    by_image, by_text = _scores_of_slots(objective, inputs, slots, finished)
    in_batch = by_image.flatten()
    of_images = _wanted(objective, by_image, slots.texts_of_images, inputs.m, in_batch)
    of_texts = of_images
    if not slots.by_position:
        of_texts = _wanted(objective, by_text, slots.images_of_texts, inputs.n, in_batch)
    return Sides(
        _side_of(by_image, slots.texts_of_images, of_images),
        _side_of(by_text, slots.images_of_texts, of_texts),
    )


def _wanted(
    objective: Objective, scores: Tensor, index: Tensor, num_candidates: int, batch: Tensor
) -> tuple[Statistic, ...]:
    found = functions(objective)
    if found is not None and found.fixed:
        return _fixed_statistics(_Same(objective), scores.device)
    return objective.statistics(positive_of(scores, index, num_candidates, batch))


def _side_of(scores: Tensor, index: Tensor, wanted: tuple[Statistic, ...]) -> Side:
    """Allocate the results of a side."""
    n, count = scores.shape
    columns = [one.given.shape[1] for one in wanted if not isinstance(one, Hardest)]
    sizes = [count, 1, *columns, *columns]
    parts = torch.split(scores.new_empty(n * sum(sizes)), [n * size for size in sizes])
    slot_slopes, best_slopes, *sums = (
        part.view(n, size) for part, size in zip(parts, sizes, strict=True)
    )
    return Side(
        index,
        scores,
        wanted,
        slot_slopes=slot_slopes,
        best_slopes=best_slopes,
        hardest=torch.empty(n, 1, dtype=torch.int32, device=scores.device),
        results=sums[: len(columns)],
        slopes=sums[len(columns) :],
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


def _scores_of_slots(
    objective: Objective, inputs: Inputs, slots: Slots, finished: Tensor
) -> tuple[Tensor, Tensor]:
    """Score the slots of both sides; find the longest vectors as well if a sum needs them."""
    from gradspace.execution.triton import query_kernels

    found = functions(objective)
    assert found is not None
    squared = any(isinstance(one, LogSumExp) and one.shared for one in found.wanted)
    by_image = inputs.empty(*slots.texts_of_images.shape)
    by_text = by_image if slots.by_position else inputs.empty(*slots.images_of_texts.shape)
    if squared:
        inputs.squares = torch.zeros(2, device=by_image.device)
    also_texts = squared or not slots.by_position
    query_kernels.prepare[(ceil(inputs.n, AT_ONCE) + also_texts * ceil(inputs.m, AT_ONCE),)](
        *(inputs.rows, inputs.columns, slots.texts_of_images, slots.images_of_texts),
        *(by_image, by_text, inputs.squares if squared else by_image, finished),
        *(inputs.n, inputs.m, inputs.rows.shape[1]),
        COUNT=by_image.shape[1],
        COUNT_T=by_text.shape[1],
        QUERIES=AT_ONCE,
        WIDTH=256,
        BY_POSITION=slots.by_position,
        SQUARED=squared,
        num_warps=1,
    )
    return by_image, by_text
