"""GPU suite: mining the lists of a whole training set, beside the bare product of its tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.case import Batch, Case
from benchmarks.gpu_timing import Step
from benchmarks.mining import CAPTIONS, TOP_IMAGES, TOP_TEXTS
from gradspace.mining import mine_exact
from gradspace.mining.top import Precision
from gradspace.scores.represented import Embeddings
from gradspace.scores.tiles import blocks, tile_size

SUITE = "mining"
TITLES = {
    "product": "bare product in tiles (the floor; no list)",
    "topk": "product and torch.topk in tiles, both directions merged",
    "gradspace": "gradspace mine_exact, own ones left out",
}
LOOKED_AT = 101
"""Stride of the lists that are compared between implementations."""
TARGET, TARGET_GIB = 6, 8
"""Targets: time relative to the product, and memory."""


def cases(quick: bool) -> list[Case]:
    """List the cases, at the size of COCO's training set."""
    images, width = (400, 32) if quick else (113_287, 1024)
    return [
        Case(SUITE, who, "product" if who == "product" else "lists", images, CAPTIONS, width)
        for who in TITLES
    ]


def prepare(case: Case, batch: Batch) -> Step:
    """Make a step that returns the lists' mean score; the bare product returns nothing."""
    images, texts = (x.detach() for x in (batch.images, batch.texts))
    if not images.is_cuda:
        images, texts = images.float(), texts.float()  # the precision that a CPU mines in
    batch = replace(batch, images=images, texts=texts)
    if case.who == "product":
        return lambda: _product(batch)
    if case.who == "topk":
        return lambda: _by_topk(batch)
    names = [str(index) for index in range(len(images))]
    captions = [str(index) for index in range(len(texts))]
    embeddings = Embeddings(images, texts, batch.image_ids, batch.text_ids, names, captions)
    return lambda: _ours(embeddings)


def _ours(embeddings: Embeddings) -> tuple[Tensor]:
    precision: Precision = "bfloat16" if embeddings.images.is_cuda else "float32"
    lists = mine_exact(embeddings, top_texts=TOP_TEXTS, top_images=TOP_IMAGES, precision=precision)
    return (_mean(*map(torch.from_numpy, (lists.text_scores, lists.image_scores))),)


def _product(b: Batch) -> tuple[()]:
    for _ in _tiles(b):
        pass
    return ()


def _tiles(b: Batch) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield images, texts and their float32 scores, tile by tile, reusing memory."""
    height, width = tile_size(b.images.device)
    memory = torch.empty(height * width, device=b.images.device)
    exact = {} if b.images.dtype == torch.float32 else {"out_dtype": torch.float32}
    for rows in blocks(len(b.images), height):
        for columns in blocks(len(b.texts), width):
            images, texts = b.images[rows], b.texts[columns].t()
            shape = (images.shape[0], texts.shape[1])
            scores = memory[: shape[0] * shape[1]].view(shape)
            yield rows, columns, torch.mm(images, texts, out=scores, **exact)


# --- straightforward implementation ---------------------------------------------------------------


def _by_topk(b: Batch) -> tuple[Tensor]:
    """Mine by torch.topk, fetching extra candidates, since a query's own are found as well."""
    num_images, num_texts, device = len(b.images), len(b.texts), b.images.device
    of_images = _Lists(num_images, TOP_TEXTS + num_texts // num_images, device)
    of_texts = _Lists(num_texts, TOP_IMAGES + 1, device)
    for rows, columns, scores in _tiles(b):
        of_images.merge(rows, scores, columns.start)
        of_texts.merge(columns, scores.t(), rows.start)
    listed = (
        of_images.without_own(b.image_ids, b.text_ids, TOP_TEXTS),
        of_texts.without_own(b.text_ids, b.image_ids, TOP_IMAGES),
    )
    return (_mean(*listed),)


class _Lists:
    """Highest scores so far and their candidates, [queries, length]."""

    def __init__(self, num_queries: int, length: int, device: torch.device) -> None:
        self.scores = torch.full((num_queries, length), -torch.inf, device=device)
        self.indices = torch.zeros(num_queries, length, dtype=torch.long, device=device)

    def merge(self, queries: slice, tile: Tensor, first: int) -> None:
        scores, indices = tile.topk(min(self.scores.shape[1], tile.shape[1]))
        scores = torch.cat([self.scores[queries], scores], 1)
        indices = torch.cat([self.indices[queries], indices + first], 1)
        self.scores[queries], kept = scores.topk(self.scores.shape[1])
        self.indices[queries] = indices.gather(1, kept)

    def without_own(self, ids: Tensor, candidate_ids: Tensor, length: int) -> Tensor:
        """Scores of the first `length` candidates that do not belong to the query."""
        others = candidate_ids[self.indices] != ids[:, None]
        listed = self.scores[others & (others.cumsum(1) <= length)]
        return listed.view(len(ids), length)


def _mean(*lists: Tensor) -> Tensor:
    """Average the scores of some lists, which is enough to compare them, at no cost."""
    return torch.stack([scores[::LOOKED_AT].double().mean().cpu() for scores in lists]).mean()
