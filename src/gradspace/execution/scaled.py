"""An objective over a batch whose score matrix is never built, shared between processes.

Every process has some images and some texts. It computes its images against the texts of all: the
statistics of its images are complete, those of the texts are parts that the processes put together.
A memory of past embeddings adds candidates, and so one more part, to both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradspace.execution.block import Block, Executor, Found, Result, Wanted, reduce
from gradspace.execution.distributed import Items, Processes
from gradspace.execution.pairs import pair_scores
from gradspace.execution.statistics import Hardest, LogSumExp, PositiveScores, Statistic
from gradspace.execution.tiles import as_computed
from gradspace.positives import match_ids

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
) -> tuple[Values, Values]:
    """The values of this process's images and of its texts.

    `aligned`: the ids of image i and text i are equal, and all others differ. `memory` holds past
    images and texts, the same ones in every process: more negatives.
    """
    past_images, past_texts = memory or (images[:0], texts[:0])
    counts = processes.exchange([len(images), len(texts)], images.ids.device)
    image_sizes, text_sizes = ([count[side] for count in counts] for side in (0, 1))
    all_texts = Items(
        processes.gather(texts.embeddings, text_sizes), processes.gather(texts.ids, text_sizes)
    )
    all_image_ids = processes.gather(images.ids, image_sizes)
    pairs = _Pairs.match(all_image_ids, all_texts.ids, aligned)
    scores = pairs.scores(images, all_texts, image_sizes, processes)
    by_image, by_text = pairs.both_sides(
        scores, (all_image_ids, past_images.ids), (all_texts.ids, past_texts.ids)
    )
    mine = _only(by_image, processes.part(image_sizes))

    of_images, of_texts = _statistics(
        executor,
        (images, past_texts, objective.statistics(mine)),
        (all_texts, past_images[processes.share(len(past_images))], objective.statistics(by_text)),
        processes,
    )
    values = objective.value(by_text, *of_texts).where(by_text.valid.any(1), 0)
    if processes.number > 1:  # backward comes to every exchange, also where nothing depends on it
        values = values + 0 * scores.sum()
    return (
        (
            objective.value(mine, *of_images).where(mine.valid.any(1), 0),
            by_image.valid.any(1).sum(),
        ),
        (values[processes.part(text_sizes)], by_text.valid.any(1).sum()),
    )


# --- positives ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pairs:
    """All positive pairs of the batch, by image; both sides read their scores from one list."""

    image: Tensor | None
    text: Tensor | None
    """None: image i belongs to text i."""
    valid_by_image: Tensor
    valid_by_text: Tensor

    @staticmethod
    def match(image_ids: Tensor, text_ids: Tensor, aligned: bool) -> _Pairs:
        if aligned:  # without asking a GPU
            one = torch.ones_like(image_ids, dtype=torch.bool).unsqueeze(1)
            return _Pairs(None, None, one, one)
        positives = match_ids(image_ids, text_ids)
        image, text = positives.pairs()
        if not len(image):
            raise ValueError(NO_PAIR)
        return _Pairs(image, text, positives.valid, positives.transpose().valid)

    def scores(
        self, images: Items, texts: Items, image_sizes: Sequence[int], processes: Processes
    ) -> Tensor:
        """Of every pair, each computed by the process that has the image."""
        image, text = self.image, self.text
        if image is None or text is None or processes.number == 1:
            return pair_scores(images.embeddings, texts.embeddings, image, text)
        ends = torch.tensor(image_sizes, device=image.device).cumsum(0)
        num_before = torch.searchsorted(image, ends).tolist()
        sizes = [stop - start for start, stop in zip([0, *num_before], num_before, strict=False)]
        mine = processes.part(sizes)
        first_image = processes.part(image_sizes).start
        own = pair_scores(
            images.embeddings, texts.embeddings, image[mine] - first_image, text[mine]
        )
        return processes.gather(own, sizes)

    def both_sides(
        self, scores: Tensor, images: _Candidates, texts: _Candidates
    ) -> tuple[PositiveScores, PositiveScores]:
        """The positives of all images and of all texts; `images` and `texts` have their ids."""
        in_batch = scores.detach()
        by_text = scores if self.text is None else scores[self.text.argsort(stable=True)]
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

_Side = tuple[Items, Items, tuple[Statistic, ...]]
"""Queries, their past candidates, and what is wanted of their negatives."""


def _statistics(
    executor: Executor, by_image: _Side, by_text: _Side, processes: Processes
) -> tuple[list[Tensor], list[Tensor]]:
    """Of the images of this process, and of the texts of all."""
    images, past_texts, of_images = by_image
    texts, past_images, of_texts = by_text
    both = [Wanted(row, column) for row, column in zip(of_images, of_texts, strict=True)]
    now = _reduce(executor, images, texts, both)
    with_past_texts = _reduce(executor, images, past_texts, [Wanted(s, None) for s in of_images])
    with_past_images = _reduce(executor, past_images, texts, [Wanted(None, s) for s in of_texts])
    alone = Processes()
    return (
        [
            _merge(
                statistic,
                images,
                [(now[k].row, texts), (with_past_texts[k].row, past_texts)],
                alone,
            )
            for k, statistic in enumerate(of_images)
        ],
        [
            _merge(
                statistic,
                texts,
                [(now[k].column, images), (with_past_images[k].column, past_images)],
                processes,
            )
            for k, statistic in enumerate(of_texts)
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


def _merge(
    wanted: Statistic,
    queries: Items,
    parts: Sequence[tuple[Tensor | Found | None, Items]],
    processes: Processes,
) -> Tensor:
    """Put together what was found among present and past candidates, here and elsewhere."""
    if isinstance(wanted, Hardest):
        found = [(part, candidates) for part, candidates in parts if isinstance(part, Found)]
        return _hardest(queries, found, processes)
    sums = [part for part, _ in parts if isinstance(part, Tensor)]
    if isinstance(wanted, LogSumExp):
        return processes.log_sum_exp(sums, like=wanted.given)
    nothing = torch.zeros_like(wanted.given)
    return processes.total(sum(sums[1:], start=sums[0] if sums else nothing))


def _hardest(queries: Items, found: Sequence[tuple[Found, Items]], processes: Processes) -> Tensor:
    """The highest negative score of each query, computed again by the one who has it."""
    nothing = as_computed(queries.embeddings.new_full((len(queries),), -torch.inf))
    best = torch.stack([nothing, *(part.value for part, _ in found)]).amax(0)
    best, owned = processes.highest(best)
    score = torch.zeros_like(best)
    for part, candidates in found:
        chosen = owned & (part.value == best) & (part.index >= 0)
        owned = owned & ~chosen
        own = pair_scores(queries.embeddings, candidates.embeddings, None, part.index.clamp(min=0))
        score = own.where(chosen, score)
    return processes.total(score).where(best > -torch.inf, -torch.inf).unsqueeze(1)
