"""Evaluate an objective over a batch shared by processes, without building its score matrix.

Every process holds some of the images and some of the texts. It scores its own images against the
texts of all processes: the statistics of its images are complete, those of the texts are partial
and are merged across processes. A memory of past embeddings adds candidates to both sides, and so
one more partial result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradspace.execution.batch_pairs import BatchPairs, PairList, only
from gradspace.execution.block import Block, Executor, HardestNegatives, Result, Wanted, reduce
from gradspace.execution.distributed import Items, Processes
from gradspace.execution.pairs import pair_scores
from gradspace.objectives.statistics import (
    Hardest,
    LogSumExp,
    OfflineScores,
    PositiveScores,
    Statistic,
)
from gradspace.scores.tiles import as_computed

if TYPE_CHECKING:
    from gradspace.objectives.contract import Objective


SideValues = tuple[Tensor, Tensor]
"""Value of each query of this process, and the number of all processes' queries with a positive."""


def both_ways(
    objective: Objective,
    images: Items,
    texts: Items,
    *,
    executor: Executor,
    processes: Processes,
    aligned: bool = False,
    memory: tuple[Items, Items] | None = None,
    extra: tuple[Items, Items] | None = None,
    offline: tuple[OfflineScores, OfflineScores] | None = None,
) -> tuple[SideValues, SideValues]:
    """Compute the values of this process's images and of its texts.

    `aligned` means that only image i and text i have equal ids. `memory` holds the same past images
    and texts in every process, `extra` further ones of each process; both only add negatives.
    """
    past_images, past_texts = _past(images, texts, memory, extra, processes)
    counts = processes.exchange([len(images), len(texts)], images.ids.device)
    image_sizes, text_sizes = (list(sizes) for sizes in zip(*counts, strict=True))
    all_texts = _gathered(texts, processes, text_sizes)
    all_image_ids = processes.gather(images.ids, image_sizes)
    pairs = BatchPairs.match(all_image_ids, all_texts.ids, image_sizes, processes, aligned)
    ids = (all_image_ids, past_images.ids), (all_texts.ids, past_texts.ids)
    rows = _joined(images, past_images[processes.share(len(past_images))])
    columns = _joined(all_texts, past_texts)
    # A mined objective needs no gradients here: those of all its pairs are computed at once below.
    with torch.set_grad_enabled(torch.is_grad_enabled() and not objective.mined):
        own_scores = pair_scores(images.embeddings, all_texts.embeddings, *pairs.own)
        by_image, by_text = pairs.both_sides(pairs.gather(own_scores, processes), *ids)
        mine = only(by_image, processes.part(image_sizes))
        of_images, of_texts = _statistics(
            executor,
            _Queries(images, len(all_texts), past_texts, objective.statistics(mine)),
            _Queries(all_texts, len(images), past_images, objective.statistics(by_text)),
            processes,
        )
    lists = [pairs.own] if objective.mined else []
    listed = iter(_scores_of_lists(rows, columns, [*lists, *_hardest(of_images, of_texts)]))
    if objective.mined:
        by_image, by_text = pairs.both_sides(pairs.gather(next(listed), processes), *ids)
        mine = only(by_image, processes.part(image_sizes))
    if offline is not None:
        mine = replace(mine, offline=offline[0])
        by_text = replace(by_text, offline=_of_all(offline[1], processes, text_sizes))
    image_values = _values(objective, mine, of_images, listed, Processes())
    text_values = _values(objective, by_text, of_texts, listed, processes)
    text_values = _reached_by_backward(text_values, by_text, processes)[processes.part(text_sizes)]
    num_images, num_texts = (side.valid.any(1).sum() for side in (by_image, by_text))
    return (image_values, num_images), (text_values, num_texts)


def _reached_by_backward(values: Tensor, positive: PositiveScores, processes: Processes) -> Tensor:
    """Make backward pass through every exchange of processes, even if nothing depends on it."""
    return values + 0 * positive.scores.sum() if processes.number > 1 else values


def _past(
    images: Items,
    texts: Items,
    memory: tuple[Items, Items] | None,
    extra: tuple[Items, Items] | None,
    processes: Processes,
) -> tuple[Items, Items]:
    """Collect images and texts that are only candidates: remembered, or mined by any process."""
    past_images, past_texts = memory or (images[:0], texts[:0])
    if extra is None:
        return past_images, past_texts
    more_images, more_texts = (_gathered(own, processes) for own in extra)
    return _both(past_images, more_images), _both(past_texts, more_texts)


def _values(
    objective: Objective,
    positive: PositiveScores,
    found: Sequence[Tensor | _Chosen],
    listed: Iterator[Tensor],
    processes: Processes,
) -> Tensor:
    """Compute the values of queries, taking the scores of their hardest negatives from `listed`."""
    statistics = [
        one.scores(next(listed), processes) if isinstance(one, _Chosen) else one for one in found
    ]
    return objective.value(positive, *statistics).where(positive.valid.any(1), 0)


def _joined(now: Items, past: Items) -> Tensor:
    return torch.cat([now.embeddings, past.embeddings]) if len(past) else now.embeddings


def _gathered(own: Items, processes: Processes, sizes: Sequence[int] | None = None) -> Items:
    """Gather the items of all processes."""
    if sizes is None:
        sizes = [size for (size,) in processes.exchange([len(own)], own.ids.device)]
    return Items(processes.gather(own.embeddings, sizes), processes.gather(own.ids, sizes))


def _both(some: Items, more: Items) -> Items:
    return Items(_joined(some, more), torch.cat([some.ids, more.ids]))


def _of_all(own: OfflineScores, processes: Processes, sizes: Sequence[int]) -> OfflineScores:
    """Gather the offline scores of the texts of all processes."""
    columns = torch.stack([own.positive, own.negative, own.pair], 1)
    return OfflineScores(*processes.gather(columns, sizes).unbind(1))


def _hardest(
    of_images: Sequence[Tensor | _Chosen], of_texts: Sequence[Tensor | _Chosen]
) -> list[PairList]:
    """List the pairs of each query and its hardest negative, images first."""
    by_image = [(_every(one), one.index) for one in of_images if isinstance(one, _Chosen)]
    by_text = [(one.index, _every(one)) for one in of_texts if isinstance(one, _Chosen)]
    return [*by_image, *by_text]


def _every(found: _Chosen) -> Tensor:
    return torch.arange(len(found.index), device=found.index.device)


def _scores_of_lists(rows: Tensor, columns: Tensor, lists: Sequence[PairList]) -> list[Tensor]:
    """Score several lists of pairs as one differentiable function; 0 if there are no rows."""
    if not lists:
        return []
    row, column = (torch.cat(side) for side in zip(*lists, strict=True))
    if len(rows):
        scores = pair_scores(rows, columns, row, column)
    else:
        scores = pair_scores(rows, columns, row[:0], column[:0]).sum().expand(len(row))
    return list(torch.split(scores, [len(row) for row, _ in lists]))


# --- negatives ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Queries:
    """Queries, the number of their candidates in the batch, past candidates, and statistics."""

    items: Items
    num_candidates: int
    past: Items
    wanted: tuple[Statistic, ...]


@dataclass(frozen=True)
class _Chosen:
    """Positions of the hardest negatives, counting the batch's candidates first, then past ones."""

    index: Tensor
    is_mine: Tensor
    """Whether this process holds the hardest negative."""
    exists: Tensor

    def scores(self, of_index: Tensor, processes: Processes) -> Tensor:
        """Scores of the hardest negatives, [queries, 1], each from the process that holds it."""
        scores = processes.total(of_index.where(self.is_mine, 0))
        return scores.where(self.exists, -torch.inf).unsqueeze(1)


def _statistics(
    executor: Executor, images: _Queries, texts: _Queries, processes: Processes
) -> tuple[list[Tensor | _Chosen], list[Tensor | _Chosen]]:
    """Compute the statistics of this process's images and of the texts of all processes."""
    both = [Wanted(row, column) for row, column in zip(images.wanted, texts.wanted, strict=True)]
    past_images = texts.past[processes.share(len(texts.past))]
    now = _reduce(executor, images.items, texts.items, both)
    more_texts = _reduce(
        executor, images.items, images.past, [Wanted(one, None) for one in images.wanted]
    )
    more_images = _reduce(
        executor, past_images, texts.items, [Wanted(None, one) for one in texts.wanted]
    )
    alone = Processes()
    return (
        [
            _merge(images, wanted, now[k].row, more_texts[k].row, alone)
            for k, wanted in enumerate(images.wanted)
        ],
        [
            _merge(texts, wanted, now[k].column, more_images[k].column, processes)
            for k, wanted in enumerate(texts.wanted)
        ],
    )


def _reduce(
    executor: Executor, rows: Items, columns: Items, wanted: Sequence[Wanted]
) -> list[Result]:
    """Reduce rows against columns; results are None if there are no queries or no candidates."""
    if not len(rows) or not len(columns):
        return [Result(None, None)] * len(wanted)
    block = Block(rows.embeddings, columns.embeddings, rows.ids, columns.ids)
    return reduce(executor, block, wanted)


_Part = Tensor | HardestNegatives | None


def _merge(
    queries: _Queries, wanted: Statistic, now: _Part, past: _Part, processes: Processes
) -> Tensor | _Chosen:
    """Merge the results over present and past candidates, and over all processes."""
    if isinstance(wanted, Hardest):
        return _choose(queries, now, past, processes)
    sums = [part for part in (now, past) if isinstance(part, Tensor)]
    if isinstance(wanted, LogSumExp):
        return processes.log_sum_exp(sums, like=wanted.given)
    nothing = torch.zeros_like(wanted.given)
    return processes.total(sum(sums[1:], start=sums[0] if sums else nothing))


def _choose(queries: _Queries, now: _Part, past: _Part, processes: Processes) -> _Chosen:
    """Choose the hardest among present and past candidates, over all processes."""
    value = as_computed(queries.items.embeddings.new_full((len(queries.items),), -torch.inf))
    index = torch.zeros_like(queries.items.ids)
    for part, offset in ((now, 0), (past, queries.num_candidates)):
        if isinstance(part, HardestNegatives):
            better = (part.value > value) | part.value.isnan()
            value = part.value.where(better, value)
            index = (part.index + offset).where(better, index)
    best, is_mine = processes.highest(value)
    exists = best != -torch.inf
    return _Chosen(index, is_mine & exists, exists)
