"""Mined lists in two stages: embeddings propose, a model that scores pairs orders and cuts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradspace.embedding import Embeddings, Progress
from gradspace.execution.tiles import PairScores, blocks
from gradspace.mining.lists import HalfFloats, MinedLists, Positions, describe_source
from gradspace.mining.own import check_enough, own_positives
from gradspace.mining.running import decode_keys, encode_keys
from gradspace.mining.top import mine_exact
from gradspace.scoring import Parts

QUERIES_AT_ONCE = 64


@torch.no_grad()
def mine_proposed(
    proposer: Embeddings,
    found: Parts,
    *,
    top_texts: int = 300,
    top_images: int = 60,
    proposals: int = 2,
    source: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> MinedLists:
    """The hardest negatives by `found`, among `proposals` times as many by the `proposer`.

    Where there are not so many negatives, all of them are proposed, and the lists are exact.
    """
    _check_same(proposer, found)
    own = own_positives(found, torch.device("cpu"))
    check_enough(own, top_texts, top_images)
    most_texts, most_images = (int(side.num_negatives.min()) for side in (own, own.transpose()))
    lists = mine_exact(
        proposer,
        top_texts=min(proposals * top_texts, most_texts),
        top_images=min(proposals * top_images, most_images),
    )
    scores, total = found.scores(), sum(own.shape)
    texts, text_scores = _ordered(
        scores, lists.texts_of_image, top_texts, False, 0, total, progress
    )
    images, image_scores = _ordered(
        scores, lists.images_of_text, top_images, True, own.num_queries, total, progress
    )
    method = {"search": "proposed and scored", "proposals": proposals}
    return MinedLists(
        texts_of_image=texts,
        text_scores=text_scores,
        images_of_text=images,
        image_scores=image_scores,
        positive_scores=_positive_scores(scores, *own.pairs()),
        record=describe_source(found, method, source),
    )


def _check_same(proposer: Embeddings, found: Parts) -> None:
    if list(proposer.captions) != list(found.captions):
        raise ValueError(
            f"the proposals are for {len(proposer.captions):,} captions, and the scorer has "
            f"{len(found.captions):,}, or others: both must be of the same split"
        )


def _ordered(
    scores: PairScores,
    proposed: Positions,
    length: int,
    by_text: bool,
    before: int,
    total: int,
    progress: Progress | None,
) -> tuple[Positions, HalfFloats]:
    """The highest of what is proposed to every query, the lower index first among equal ones."""
    listed = torch.empty(len(proposed), length, dtype=torch.int32)
    values = torch.empty(len(proposed), length, dtype=torch.float16)
    for rows in blocks(len(proposed), QUERIES_AT_ONCE):
        candidate = torch.from_numpy(np.asarray(proposed[rows], dtype=np.int64))
        query = torch.arange(rows.start, rows.stop)[:, None].expand_as(candidate)
        pair = (candidate, query) if by_text else (query, candidate)
        found = scores.pairs(*(side.flatten() for side in pair)).cpu().view_as(candidate)
        keys = encode_keys(found, candidate).topk(length, dim=1).values
        value, index = decode_keys(keys)
        listed[rows], values[rows] = index.int(), value.half()
        if progress:
            progress(before + rows.stop, total)
    return listed.numpy(), values.numpy()


def _positive_scores(scores: PairScores, image: Tensor, text: Tensor) -> HalfFloats:
    """[texts]: of a caption with its own image, the best of several; NaN without one."""
    best = torch.full((scores.shape[1],), -torch.inf)
    best.scatter_reduce_(0, text, scores.pairs(image, text).float().cpu(), "amax")
    return best.where(best.isfinite(), torch.nan).half().numpy()
