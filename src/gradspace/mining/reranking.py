"""Mined lists in two stages: embeddings propose, and a model that scores pairs re-ranks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradspace.mining.lists import HalfFloats, MinedLists, describe_source
from gradspace.mining.own import check_enough, own_positives
from gradspace.mining.state import fingerprint, load_state, save_state, state_file
from gradspace.mining.top import SECONDS_PER_SAVE, mine_exact
from gradspace.nearest.running import decode_keys, encode_keys
from gradspace.progress import Progress
from gradspace.scores.represented import Embeddings, Parts
from gradspace.scores.tiles import PairScores, blocks

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
    state: Path | None = None,
    save_every: float = SECONDS_PER_SAVE,
    progress: Progress | None = None,
) -> MinedLists:
    """Mine the hardest negatives by `found`, among `proposals` times as many by `proposer`.

    If there are fewer negatives than that, all are proposed, and the lists are exact. With
    `state` an interrupted mining resumes where it stopped, as in `mine_exact`.
    """
    _check_same(proposer, found)
    own = own_positives(found, torch.device("cpu"))
    check_enough(own, top_texts, top_images)
    most_texts, most_images = (int(side.num_negatives.min()) for side in (own, own.transpose()))
    proposed = mine_exact(
        proposer,
        top_texts=min(proposals * top_texts, most_texts),
        top_images=min(proposals * top_images, most_images),
    )
    scores = found.scores()
    done = _Ordered(scores, proposed, (top_texts, top_images))
    positive = _positive_scores(scores, *found.positives().pairs())
    inputs = _fingerprint(proposed, found, done.keys, positive) if state else ""
    if state and (saved := load_state(state_file(state), inputs)):
        done.restore(saved)
    last_save = time.monotonic()
    for number in range(int(done.next_block), len(done.blocks)):
        done.order(number)
        if state and time.monotonic() - last_save >= save_every:
            save_state(state_file(state), inputs, done.tensors())
            last_save = time.monotonic()
        if progress:
            progress(number + 1, len(done.blocks))
    (text_scores, texts), (image_scores, images) = map(decode_keys, done.keys)
    method = {"search": "proposed and scored", "proposals": proposals}
    return MinedLists(
        texts_of_image=texts.int().numpy(),
        text_scores=text_scores.half().numpy(),
        images_of_text=images.int().numpy(),
        image_scores=image_scores.half().numpy(),
        positive_scores=positive,
        record=describe_source(found, method, source),
    )


def _check_same(proposer: Embeddings, found: Parts) -> None:
    if list(proposer.captions) != list(found.captions):
        raise ValueError(
            f"the proposals are for {len(proposer.captions):,} captions, and the scorer has "
            f"{len(found.captions):,} or different ones: use the same split for both"
        )


class _Ordered:
    """Highest scores among the proposals of every query; of equal ones the lower index is first."""

    def __init__(self, scores: PairScores, proposed: MinedLists, lengths: tuple[int, int]) -> None:
        self.scores = scores
        self.proposed = (proposed.texts_of_image, proposed.images_of_text)
        self.blocks = [
            (way, rows)
            for way, lists in enumerate(self.proposed)
            for rows in blocks(len(lists), QUERIES_AT_ONCE)
        ]
        self.keys = tuple(
            torch.zeros(len(lists), length, dtype=torch.int64)
            for lists, length in zip(self.proposed, lengths, strict=True)
        )
        """Encoded scores of images' lists, and of texts' lists; see `nearest.running`."""
        self.next_block = torch.tensor(0)

    def order(self, number: int) -> None:
        way, rows = self.blocks[number]
        candidate = torch.from_numpy(np.asarray(self.proposed[way][rows], dtype=np.int64))
        query = torch.arange(rows.start, rows.stop)[:, None].expand_as(candidate)
        pair = (query, candidate) if way == 0 else (candidate, query)
        found = self.scores.pairs(*(side.flatten() for side in pair)).cpu().view_as(candidate)
        keys = encode_keys(found, candidate)
        self.keys[way][rows] = keys.topk(self.keys[way].shape[1], dim=1).values
        self.next_block.fill_(number + 1)

    def tensors(self) -> dict[str, Tensor]:
        return {"images": self.keys[0], "texts": self.keys[1], "next_block": self.next_block}

    def restore(self, saved: dict[str, Tensor]) -> None:
        for name, tensor in self.tensors().items():
            tensor.copy_(saved[name])


def _fingerprint(
    proposed: MinedLists, found: Parts, keys: tuple[Tensor, ...], positive: HalfFloats
) -> str:
    """Identify a mining; the scores of positive pairs stand for the scorer's function."""
    arrays = (proposed.texts_of_image, proposed.images_of_text, positive)
    tensors = map(torch.from_numpy, map(np.ascontiguousarray, arrays))
    lengths = [side.shape[1] for side in keys]
    parts = (found.images, found.words, found.lengths)
    return fingerprint((*tensors, *parts), {"lengths": lengths})


def _positive_scores(scores: PairScores, image: Tensor, text: Tensor) -> HalfFloats:
    """Scores [texts] of a caption with its own image, the best of several; NaN without one."""
    best = torch.full((scores.shape[1],), -torch.inf)
    best.scatter_reduce_(0, text, scores.pairs(image, text).float().cpu(), "amax")
    return best.where(best.isfinite(), torch.nan).half().numpy()
