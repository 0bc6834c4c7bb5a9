"""Hardest negatives from an approximate index of faiss, for corpora too large for exact search.

The lists may miss some of the hardest negatives; recall is measured on a sample and recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradspace.mining.lists import HalfFloats, MinedLists, Positions, describe_source
from gradspace.mining.own import check_enough, own_positives
from gradspace.nearest.faiss import MOST_IN_HNSW, import_faiss, new_clusters, new_graph
from gradspace.nearest.running import RunningTop, decode_keys
from gradspace.scores.positives import Positives
from gradspace.scores.represented import Embeddings
from gradspace.scores.tiles import blocks

FaissKind = Literal["hnsw", "ivf"]
SEARCHED_AT_ONCE = 4096
"""Number of queries at once, small enough for over-fetched results to fit in memory."""
SAMPLE = 200
"""Number of queries per direction whose exact lists are computed to measure recall."""


@torch.no_grad()
def mine_with_faiss(
    embeddings: Embeddings,
    *,
    top_texts: int = 300,
    top_images: int = 60,
    source: Mapping[str, Any] | None = None,
    index: FaissKind | None = None,
    seed: int = 0,
) -> MinedLists:
    """Mine approximately the lists of `mine_exact`, in less than quadratic time.

    `index` is "hnsw" (the default up to a million vectors) or "ivf". The record has the method,
    and `recall_texts` and `recall_images`: the share of the exact lists of 200 images and of 200
    captions, drawn by `seed`, that was found.
    """
    if index not in ("hnsw", "ivf", None):
        raise ValueError(f"index is {index!r}; use 'hnsw' or 'ivf'")
    faiss = import_faiss("approximate mining", "mine exactly")
    own = own_positives(embeddings, torch.device("cpu"))
    images, texts = (x.cpu().float() for x in (embeddings.images, embeddings.texts))
    check_enough(own, top_texts, top_images)
    of_images = _Search(images, texts, own, top_texts)
    of_texts = _Search(texts, images, own.transpose(), top_images)
    found_texts, text_scores = of_images.all_lists(faiss, index)
    found_images, image_scores = of_texts.all_lists(faiss, index)
    method = {
        "search": f"faiss {index or 'by size'}",
        "recall_texts": of_images.recall(found_texts, seed),
        "recall_images": of_texts.recall(found_images, seed),
    }
    return MinedLists(
        texts_of_image=found_texts,
        text_scores=text_scores,
        images_of_text=found_images,
        image_scores=image_scores,
        positive_scores=_positive_scores(texts, images, embeddings.positives().transpose()),
        record=describe_source(embeddings, method, source),
    )


@dataclass(frozen=True, eq=False)
class _Search:
    """One direction of the search: queries, candidates, own positives, and the length of lists."""

    queries: Tensor
    candidates: Tensor
    own: Positives
    length: int

    def all_lists(self, faiss: Any, kind: FaissKind | None) -> tuple[Positions, HalfFloats]:
        num_own = int(self.own.valid.sum(1).max())
        fetched = min(self.length + num_own, len(self.candidates))
        index = _build(faiss, self.candidates, kind, fetched)
        lists = np.empty((len(self.queries), self.length), np.int32)
        scores = np.empty(lists.shape, np.float16)
        for rows in blocks(len(self.queries), SEARCHED_AT_ONCE):
            near, found = index.search(self.queries[rows].numpy(), fetched)
            lists[rows], scores[rows] = self._without_own(rows, near, found)
        return lists, scores

    def _without_own(
        self, rows: slice, scores: NDArray[np.float32], found: NDArray[np.int64]
    ) -> tuple[Positions, NDArray[np.float32]]:
        """Drop a query's own positives; fall back to exact lists if too few entries remain."""
        kept = (found >= 0) & ~self._is_own(np.arange(rows.start, rows.stop), found)
        order = np.argsort(~kept, axis=1, kind="stable")[:, : self.length]
        lists = np.take_along_axis(found, order, 1).astype(np.int32)
        scores = np.take_along_axis(scores, order, 1)
        short = np.flatnonzero(kept.sum(1) < self.length)
        if len(short):
            lists[short], scores[short] = self.exact(torch.from_numpy(short + rows.start))
        return lists, scores

    def _is_own(self, queries: NDArray[np.int64], found: NDArray[np.int64]) -> NDArray[np.bool_]:
        index = np.where(self.own.valid[queries], self.own.index[queries], -1)
        own = np.zeros(found.shape, np.bool_)
        for slot in range(index.shape[1]):
            own |= found == index[:, slot, None]
        return own

    def exact(self, queries: Tensor) -> tuple[Positions, NDArray[np.float32]]:
        """Compute the true lists of some queries, from all scores."""
        top = RunningTop(len(queries), self.length, queries.device)
        for columns in blocks(len(self.candidates), SEARCHED_AT_ONCE):
            tile = self.queries[queries] @ self.candidates[columns].t()
            found = np.arange(columns.start, columns.stop)[None].repeat(len(queries), 0)
            tile[torch.from_numpy(self._is_own(queries.numpy(), found))] = -torch.inf
            top.take(slice(0, len(queries)), tile, columns.start)
        scores, indices = decode_keys(top.keys.sort(descending=True).values)
        return indices.int().numpy(), scores.numpy()

    def recall(self, lists: Positions, seed: int) -> float:
        """Measure the share of the exact lists of some queries that `lists` contains."""
        generator = torch.Generator().manual_seed(seed)
        sample = torch.randperm(len(self.queries), generator=generator)[:SAMPLE]
        wanted, _ = self.exact(sample)
        pairs = zip(wanted, lists[sample.numpy()], strict=True)
        return float(np.mean([np.isin(true, found).mean() for true, found in pairs]))


def _build(faiss: Any, candidates: Tensor, kind: FaissKind | None, fetched: int) -> Any:
    """Build an index by inner product that finds `fetched` entries per query."""
    count, width = candidates.shape
    kind = kind or ("hnsw" if count <= MOST_IN_HNSW else "ivf")
    if kind == "hnsw":
        index = new_graph(faiss, width)
        index.hnsw.efSearch = 2 * fetched
    else:
        index = new_clusters(faiss, count, width)
        index.train(candidates.numpy())
    index.add(candidates.numpy())
    return index


def _positive_scores(texts: Tensor, images: Tensor, own: Positives) -> HalfFloats:
    """Scores [texts] of every text with its own image, the best of several; NaN without one."""
    best = torch.full((len(texts),), torch.nan)
    for slot in range(own.index.shape[1]):
        scores = (texts * images[own.index[:, slot]]).sum(1)
        best = torch.where(own.valid[:, slot], torch.fmax(best, scores), best)
    return best.half().numpy()
