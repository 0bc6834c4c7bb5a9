"""Positive pairs of a batch shared by several processes, and their scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradspace.execution.distributed import Processes
from gradspace.objectives.statistics import PositiveScores
from gradspace.scores.positives import match_ids

NO_PAIR = "no image id equals a text id, so the batch has no positive pair; check the ids"

PairList = tuple[Tensor, Tensor]
"""Rows and columns of pairs."""


def _are_aligned(image_ids: Tensor, text_ids: Tensor) -> bool:
    """Whether image i matches text i and no other; checked first, being cheaper than all pairs."""
    if image_ids.dim() > 1 or not torch.equal(image_ids, text_ids):
        return False
    in_order = image_ids.sort().values
    return bool((in_order[1:] != in_order[:-1]).all())


@dataclass(frozen=True)
class BatchPairs:
    """Positive pairs of the whole batch, by image; both sides read their scores from one list."""

    own: PairList
    """Pairs whose image this process holds; its images are counted from 0."""
    sizes: list[int]
    """Number of pairs in each process."""
    by_text: Tensor | None
    """Order of the pairs by text; None if it is the order by image."""
    valid_by_image: Tensor
    valid_by_text: Tensor

    @staticmethod
    def match(
        image_ids: Tensor,
        text_ids: Tensor,
        image_sizes: Sequence[int],
        processes: Processes,
        aligned: bool,
    ) -> BatchPairs:
        if aligned or (processes.number == 1 and _are_aligned(image_ids, text_ids)):
            one = torch.ones(len(image_ids), 1, dtype=torch.bool, device=image_ids.device)
            every = torch.arange(len(one), device=one.device)
            return BatchPairs((every, every), [len(one)], None, one, one)
        positives = match_ids(image_ids, text_ids)
        image, text = positives.pairs()
        if not len(image):
            raise ValueError(NO_PAIR)
        order, by_text = text.argsort(stable=True), positives.transpose().valid
        if processes.number == 1:
            return BatchPairs((image, text), [len(image)], order, positives.valid, by_text)
        ends = torch.tensor(image_sizes, device=image.device).cumsum(0)
        before = torch.searchsorted(image, ends).tolist()
        sizes = [stop - start for start, stop in zip([0, *before], before, strict=False)]
        mine, first = processes.part(sizes), processes.part(image_sizes).start
        own = image[mine] - first, text[mine]
        return BatchPairs(own, sizes, order, positives.valid, by_text)

    def gather(self, own_scores: Tensor, processes: Processes) -> Tensor:
        """Gather the scores of the pairs of all processes."""
        return processes.gather(own_scores, self.sizes)

    def both_sides(
        self, scores: Tensor, images: _Candidates, texts: _Candidates
    ) -> tuple[PositiveScores, PositiveScores]:
        """Split pair scores into the positives of all images and those of all texts."""
        in_batch = scores.detach()
        by_text = scores if self.by_text is None else scores[self.by_text]
        return (
            _positive_scores(scores, self.valid_by_image, in_batch, images, texts),
            _positive_scores(by_text, self.valid_by_text, in_batch, texts, images),
        )


_Candidates = tuple[Tensor, Tensor]
"""Ids of the candidates in the batch, and of the past ones."""


def _positive_scores(
    scores: Tensor, valid: Tensor, in_batch: Tensor, queries: _Candidates, candidates: _Candidates
) -> PositiveScores:
    """Arrange the scores of all pairs, which come in the order of the queries, in slots."""
    if valid.shape[1] == 1 and len(scores) == len(valid):  # each query has one positive
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
    """Count how often each id occurs in `among`; an item of several ids counts what shares one."""
    if ids.dim() > 1 or among.dim() > 1:
        return match_ids(ids, among).valid.sum(1)
    among = among.sort().values
    return torch.searchsorted(among, ids, right=True) - torch.searchsorted(among, ids)


def only(positive: PositiveScores, part: slice) -> PositiveScores:
    """Positives of a range of the queries."""
    return PositiveScores(
        positive.scores[part],
        positive.valid[part],
        positive.num_negatives[part],
        positive.in_batch,
    )
