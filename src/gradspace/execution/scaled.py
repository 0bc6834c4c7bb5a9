"""An objective over a batch whose score matrix is never built, shared between processes.

Every process has some images and some texts. It computes its images against the texts of all: the
statistics of its images are complete, those of the texts are parts that the processes put together.
A memory of past embeddings adds candidates, and so one more part, to both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

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
from gradspace.scores.positives import match_ids
from gradspace.scores.tiles import as_computed

if TYPE_CHECKING:
    from gradspace.objectives.contract import Objective


NO_PAIR = "no image id equals a text id: the batch has no positive pair at all"

Values = tuple[Tensor, Tensor]
"""The value of each query of this process, and how many queries of all have a positive."""


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
) -> tuple[Values, Values]:
    """The values of this process's images and of its texts.

    `aligned`: the ids of image i and text i are equal, and all others differ. `memory` holds past
    images and texts, the same ones in every process: more negatives. So are the `extra` images and
    texts, which every process has of its own. `offline` goes with its images and its texts.
    """
    past_images, past_texts = memory or (images[:0], texts[:0])
    if extra is not None:
        past_images, past_texts = (
            _both(past, _gathered(own, processes))
            for past, own in zip((past_images, past_texts), extra, strict=True)
        )
    counts = processes.exchange([len(images), len(texts)], images.ids.device)
    image_sizes, text_sizes = ([count[side] for count in counts] for side in (0, 1))
    all_texts = _gathered(texts, processes, text_sizes)
    all_image_ids = processes.gather(images.ids, image_sizes)
    pairs = _Pairs.match(all_image_ids, all_texts.ids, image_sizes, processes, aligned)
    ids = (all_image_ids, past_images.ids), (all_texts.ids, past_texts.ids)
    rows = _joined(images, past_images[processes.share(len(past_images))])
    columns = _joined(all_texts, past_texts)

    # A mined objective needs no gradient of its statistics: those of all pairs come in one go.
    with torch.set_grad_enabled(torch.is_grad_enabled() and not objective.mined):
        own_scores = pair_scores(images.embeddings, all_texts.embeddings, *pairs.own)
        by_image, by_text = pairs.both_sides(pairs.gather(own_scores, processes), *ids)
        mine = _only(by_image, processes.part(image_sizes))
        of_images, of_texts = _statistics(
            executor,
            _Queries(images, len(all_texts), past_texts, objective.statistics(mine)),
            _Queries(all_texts, len(images), past_images, objective.statistics(by_text)),
            processes,
        )
    lists = [pairs.own] if objective.mined else []
    lists += [(_every(one), one.index) for one in of_images if isinstance(one, _Chosen)]
    lists += [(one.index, _every(one)) for one in of_texts if isinstance(one, _Chosen)]
    listed = _scores_of_lists(rows, columns, lists)
    if objective.mined:
        own_scores, *listed = listed
        by_image, by_text = pairs.both_sides(pairs.gather(own_scores, processes), *ids)
        mine = _only(by_image, processes.part(image_sizes))
    left = iter(listed)
    if offline is not None:
        mine = replace(mine, offline=offline[0])
        by_text = replace(by_text, offline=_of_all(offline[1], processes, text_sizes))
    values_of_images = _values(objective, mine, of_images, left, Processes())
    values_of_texts = _values(objective, by_text, of_texts, left, processes)
    if processes.number > 1:  # backward comes to every exchange, also where nothing depends on it
        values_of_texts = values_of_texts + 0 * by_text.scores.sum()
    return (
        (values_of_images, by_image.valid.any(1).sum()),
        (values_of_texts[processes.part(text_sizes)], by_text.valid.any(1).sum()),
    )


def _values(
    objective: Objective,
    positive: PositiveScores,
    found: Sequence[Tensor | _Chosen],
    listed: Iterator[Tensor],
    processes: Processes,
) -> Tensor:
    """Of queries; the scores of their hardest negatives are the next that are listed."""
    statistics = [
        one.scores(next(listed), processes) if isinstance(one, _Chosen) else one for one in found
    ]
    return objective.value(positive, *statistics).where(positive.valid.any(1), 0)


def _joined(now: Items, past: Items) -> Tensor:
    return torch.cat([now.embeddings, past.embeddings]) if len(past) else now.embeddings


def _gathered(own: Items, processes: Processes, sizes: Sequence[int] | None = None) -> Items:
    """The items of all processes."""
    if sizes is None:
        sizes = [size for (size,) in processes.exchange([len(own)], own.ids.device)]
    return Items(processes.gather(own.embeddings, sizes), processes.gather(own.ids, sizes))


def _both(some: Items, more: Items) -> Items:
    return Items(_joined(some, more), torch.cat([some.ids, more.ids]))


def _of_all(own: OfflineScores, processes: Processes, sizes: Sequence[int]) -> OfflineScores:
    """The scores that go with the texts of all processes."""
    columns = torch.stack([own.positive, own.negative, own.pair], 1)
    return OfflineScores(*processes.gather(columns, sizes).unbind(1))


def _every(found: _Chosen) -> Tensor:
    return torch.arange(len(found.index), device=found.index.device)


_List = tuple[Tensor, Tensor]
"""Rows and columns of pairs."""


def _scores_of_lists(rows: Tensor, columns: Tensor, lists: Sequence[_List]) -> list[Tensor]:
    """Of several lists of pairs, with one gradient; 0 where there is no row at all."""
    if not lists:
        return []
    row, column = (torch.cat(side) for side in zip(*lists, strict=True))
    if len(rows):
        scores = pair_scores(rows, columns, row, column)
    else:
        scores = pair_scores(rows, columns, row[:0], column[:0]).sum().expand(len(row))
    return list(torch.split(scores, [len(row) for row, _ in lists]))


# --- positives ----------------------------------------------------------------------------------


def _are_aligned(image_ids: Tensor, text_ids: Tensor) -> bool:
    """Does image i belong to text i and to no other? Asked first, being cheaper than all pairs."""
    if not torch.equal(image_ids, text_ids):
        return False
    in_order = image_ids.sort().values
    return bool((in_order[1:] != in_order[:-1]).all())


@dataclass(frozen=True)
class _Pairs:
    """All positive pairs of the batch, by image; both sides read their scores from one list."""

    own: _List
    """Those whose image this process has, in its own count of images."""
    sizes: list[int]
    """How many every process has."""
    by_text: Tensor | None
    """The order of the pairs by text; None where it is the same."""
    valid_by_image: Tensor
    valid_by_text: Tensor

    @staticmethod
    def match(
        image_ids: Tensor,
        text_ids: Tensor,
        image_sizes: Sequence[int],
        processes: Processes,
        aligned: bool,
    ) -> _Pairs:
        if aligned or (processes.number == 1 and _are_aligned(image_ids, text_ids)):
            one = torch.ones_like(image_ids, dtype=torch.bool).unsqueeze(1)
            every = torch.arange(len(one), device=one.device)
            return _Pairs((every, every), [len(one)], None, one, one)
        positives = match_ids(image_ids, text_ids)
        image, text = positives.pairs()
        if not len(image):
            raise ValueError(NO_PAIR)
        order, by_text = text.argsort(stable=True), positives.transpose().valid
        if processes.number == 1:
            return _Pairs((image, text), [len(image)], order, positives.valid, by_text)
        ends = torch.tensor(image_sizes, device=image.device).cumsum(0)
        before = torch.searchsorted(image, ends).tolist()
        sizes = [stop - start for start, stop in zip([0, *before], before, strict=False)]
        mine, first = processes.part(sizes), processes.part(image_sizes).start
        own = image[mine] - first, text[mine]
        return _Pairs(own, sizes, order, positives.valid, by_text)

    def gather(self, own_scores: Tensor, processes: Processes) -> Tensor:
        """The scores of all pairs."""
        return processes.gather(own_scores, self.sizes)

    def both_sides(
        self, scores: Tensor, images: _Candidates, texts: _Candidates
    ) -> tuple[PositiveScores, PositiveScores]:
        """The positives of all images and of all texts; `images` and `texts` have their ids."""
        in_batch = scores.detach()
        by_text = scores if self.by_text is None else scores[self.by_text]
        return (
            _positive_scores(scores, self.valid_by_image, in_batch, images, texts),
            _positive_scores(by_text, self.valid_by_text, in_batch, texts, images),
        )


_Candidates = tuple[Tensor, Tensor]
"""The ids of what is in the batch, and of what is remembered."""


def _positive_scores(
    scores: Tensor, valid: Tensor, in_batch: Tensor, queries: _Candidates, candidates: _Candidates
) -> PositiveScores:
    """From the scores of all pairs in the order of the queries."""
    if valid.shape[1] == 1 and len(scores) == len(valid):  # each query has one
        slots = scores.unsqueeze(1)
    else:
        number = (valid.flatten().cumsum(0) - 1).clamp(min=0).view_as(valid)
        slots = scores[number].where(valid, 0)
    now, past = candidates
    num_past = len(past) - _num_equal(queries[0], past) if len(past) else 0
    return PositiveScores(
        scores=slots,
        valid=valid,
        num_negatives=(len(now) - valid.sum(1) + num_past).unsqueeze(1),
        in_batch=in_batch,
    )


def _num_equal(ids: Tensor, among: Tensor) -> Tensor:
    """[ids]: how many of `among` each id equals."""
    among = among.sort().values
    return torch.searchsorted(among, ids, right=True) - torch.searchsorted(among, ids)


def _only(positive: PositiveScores, part: slice) -> PositiveScores:
    return PositiveScores(
        positive.scores[part],
        positive.valid[part],
        positive.num_negatives[part],
        positive.in_batch,
    )


# --- negatives ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Queries:
    """Queries, the number of their present candidates, their past ones, and what is wanted."""

    items: Items
    num_candidates: int
    past: Items
    wanted: tuple[Statistic, ...]


@dataclass(frozen=True)
class _Chosen:
    """Where the hardest negatives are: among the present candidates, then the past ones."""

    index: Tensor
    is_mine: Tensor
    """Does this process have it?"""
    exists: Tensor

    def scores(self, of_index: Tensor, processes: Processes) -> Tensor:
        """[queries, 1], from the scores at the index, where the one who has it computed them."""
        scores = processes.total(of_index.where(self.is_mine, 0))
        return scores.where(self.exists, -torch.inf).unsqueeze(1)


def _statistics(
    executor: Executor, images: _Queries, texts: _Queries, processes: Processes
) -> tuple[list[Tensor | _Chosen], list[Tensor | _Chosen]]:
    """Of the images of this process, and of the texts of all."""
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
    """Nothing comes out where there are no queries or no candidates."""
    if not len(rows) or not len(columns):
        return [Result(None, None)] * len(wanted)
    block = Block(rows.embeddings, columns.embeddings, rows.ids, columns.ids)
    return reduce(executor, block, wanted)


_Part = Tensor | HardestNegatives | None


def _merge(
    queries: _Queries, wanted: Statistic, now: _Part, past: _Part, processes: Processes
) -> Tensor | _Chosen:
    """Put together what was found among present and past candidates, here and elsewhere."""
    if isinstance(wanted, Hardest):
        return _choose(queries, now, past, processes)
    sums = [part for part in (now, past) if isinstance(part, Tensor)]
    if isinstance(wanted, LogSumExp):
        return processes.log_sum_exp(sums, like=wanted.given)
    nothing = torch.zeros_like(wanted.given)
    return processes.total(sum(sums[1:], start=sums[0] if sums else nothing))


def _choose(queries: _Queries, now: _Part, past: _Part, processes: Processes) -> _Chosen:
    """The hardest of present and past candidates, and of all processes."""
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
