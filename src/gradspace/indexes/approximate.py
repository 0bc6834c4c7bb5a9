"""Approximate search in vectors on one machine: a faiss index file beside a matrix.

The index finds several times as many candidates as are wanted. Their scores are computed from the
vectors themselves: items may be missed, but those found are in their true order.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradspace.files import write_atomically
from gradspace.nearest.exact import Neighbours, highest, top_rows
from gradspace.nearest.faiss import import_faiss, new_clusters, new_graph
from gradspace.scores.tiles import blocks

IndexKind = Literal["hnsw", "ivf-pq"]
FEWEST_IN_IVF_PQ = 256
TRAINED_ON = 65_536
"""Least number of vectors to train on; more for many clusters."""
TAKEN_AT_ONCE = 16_384
FETCHED, FETCHED_IN_CODES = 4, 20
"""Candidates per wanted item: more if vectors are kept as codes."""
FEWEST_FETCHED = 64
SHARE_OF_CLUSTERS = 1 / 4
"""Share of the clusters that are searched, if vectors are in clusters."""
SAMPLE, SAMPLE_K, SAMPLE_NOISE = 200, 10, 0.5
MARK = b"gradspaceindex\r\n"
"""Mark at the end of a file, before its length: otherwise a truncated file would go unnoticed
until it is searched."""


def build(
    path: Path,
    vectors: Tensor,
    kind: IndexKind,
    progress: Callable[[int], None] = lambda done: None,
) -> float:
    """Write the index of float16 vectors [n, width], of unit length, and measure its recall.

    `progress` gets the number of vectors added so far. Returns the share of the 10 nearest that is
    found, as a mean over up to 200 queries: vectors drawn from all, each moved by half its length
    in a random direction, as a vector itself would be too easy to find.
    """
    faiss = load_faiss()
    count, width = vectors.shape
    if kind == "hnsw":
        index = new_graph(faiss, width, halves=True)
        index.train(_floats(vectors[:1]))  # learns nothing: numbers are rounded one by one
    else:
        if count < FEWEST_IN_IVF_PQ:
            raise ValueError(
                f"an ivf-pq index needs at least {FEWEST_IN_IVF_PQ} vectors, and there are "
                f"{count}: use hnsw, or search exactly"
            )
        index = new_clusters(faiss, count, width, codes=True)
        num_trained = max(TRAINED_ON, index.nlist * index.cp.max_points_per_centroid)
        index.train(_floats(vectors[_draw(count, num_trained)]))
    for rows in blocks(count, TAKEN_AT_ONCE):
        index.add(_floats(vectors[rows]))
        progress(rows.stop)
    with write_atomically(path, "wb") as file:
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write, 1 << 20))
        file.write(MARK + file.tell().to_bytes(8, "little"))
    del index
    return _recall(Approximate(path, vectors))


class Approximate:
    """Opened index file of a matrix; index and vectors are read on access."""

    def __init__(self, path: Path, vectors: Tensor) -> None:
        self._faiss, self._vectors = load_faiss(), vectors
        _check_complete(path)
        mapped = getattr(self._faiss, "IO_FLAG_MMAP_IFC", self._faiss.IO_FLAG_MMAP)  # graphs too
        try:
            self._index: Any = self._faiss.read_index(str(path), mapped)
        except RuntimeError as error:
            raise ValueError(f"{path} is not a faiss index: build it again") from error
        self._is_graph = hasattr(self._index, "hnsw")
        if (self._index.ntotal, self._index.d) != tuple(vectors.shape):
            raise ValueError(
                f"{path} is for {self._index.ntotal} x {self._index.d} numbers, and the vectors "
                f"are {' x '.join(map(str, vectors.shape))}: build it again"
            )

    def search(self, queries: Tensor, k: int, allowed: Tensor | None = None) -> list[Neighbours]:
        """Find approximately what `top_rows` finds.

        The result is exact if few items are allowed, or if the index finds too few.
        """
        count = len(self._vectors)
        num_allowed = count if allowed is None else int(allowed.sum())
        fetched = max(FEWEST_FETCHED, k * (FETCHED if self._is_graph else FETCHED_IN_CODES))
        fetched = min(fetched, count)
        # The fewer allowed, the longer a graph is walked: 2 fetched / share steps, 32 scores each.
        if num_allowed * num_allowed <= 64 * fetched * count:
            return top_rows(self._vectors, queries, k, allowed)
        _, near = self._index.search(
            queries.numpy(), fetched, params=self._parameters(fetched, allowed, num_allowed)
        )
        found = []
        for query, rows in zip(queries, torch.from_numpy(near), strict=True):
            rows = rows[rows >= 0]
            if len(rows) < min(k, num_allowed):
                found += top_rows(self._vectors, query[None], k, allowed)
            else:
                found.append(highest(self._vectors, query, rows, k))
        return found

    def _parameters(self, fetched: int, allowed: Tensor | None, num_allowed: int) -> Any:
        selected = {}
        if allowed is not None:
            selected["sel"] = self._faiss.IDSelectorBitmap(
                np.packbits(allowed.numpy(), bitorder="little")
            )
        if self._is_graph:
            effort = 2 * fetched * len(self._vectors) // num_allowed
            return self._faiss.SearchParametersHNSW(efSearch=effort, **selected)
        return self._faiss.SearchParametersIVF(
            nprobe=max(1, int(self._index.nlist * SHARE_OF_CLUSTERS)), **selected
        )


def _recall(index: Approximate) -> float:
    vectors = index._vectors
    drawn = vectors[_draw(len(vectors), SAMPLE)].float()
    moved = torch.randn(drawn.shape, generator=torch.Generator().manual_seed(1))
    queries = drawn + SAMPLE_NOISE * torch.nn.functional.normalize(moved, dim=1)
    queries = torch.nn.functional.normalize(queries, dim=1)
    k = min(SAMPLE_K, len(vectors))
    pairs = zip(index.search(queries, k), top_rows(vectors, queries, k), strict=True)
    return float(np.mean([np.isin(true, found).mean() for (found, _), (true, _) in pairs]))


def _draw(count: int, wanted: int) -> Tensor:
    drawn = np.random.default_rng(0).choice(count, min(count, wanted), replace=False)
    return torch.from_numpy(np.sort(drawn))


def _floats(vectors: Tensor) -> NDArray[np.float32]:
    return vectors.float().numpy()


def _check_complete(path: Path) -> None:
    if not path.exists():
        raise ValueError(f"{path} does not exist: build the index")
    length = len(MARK) + 8
    with open(path, "rb") as file:
        size = path.stat().st_size
        file.seek(max(0, size - length))
        if file.read() != MARK + max(0, size - length).to_bytes(8, "little"):
            raise ValueError(f"{path} is truncated, or is not a faiss index: build it again")


def load_faiss() -> Any:
    return import_faiss("approximate search", "search exactly")
