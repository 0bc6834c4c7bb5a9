"""Construction of the approximate faiss indices, by inner product, for mining and for search."""

from __future__ import annotations

from typing import Any

from gradspace.commands import pip_install

MOST_IN_HNSW = 1_000_000
"""Number of vectors beyond which a graph takes too long to build, and clusters (IVF) are used."""
HNSW_NEIGHBOURS = 32
HNSW_BUILD_EFFORT = 80
VECTORS_PER_CLUSTER_TRAINED = 64
SHARE_OF_CLUSTERS_SEARCHED = 1 / 8
NUMBERS_PER_CODE = 8
"""Numbers of a vector that one byte of its product-quantised form stands for."""


def import_faiss(what: str, instead: str) -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ValueError(
            f"{what} needs faiss, which is not installed: {pip_install('faiss-cpu')}, or {instead}"
        ) from error
    return faiss


def new_graph(faiss: Any, width: int, *, halves: bool = False) -> Any:
    """Create an HNSW index, which stores the vectors unchanged or as halves."""
    metric = faiss.METRIC_INNER_PRODUCT
    if halves:
        kept = faiss.ScalarQuantizer.QT_fp16
        index = faiss.IndexHNSWSQ(width, kept, HNSW_NEIGHBOURS, metric)
    else:
        index = faiss.IndexHNSWFlat(width, HNSW_NEIGHBOURS, metric)
    index.hnsw.efConstruction = HNSW_BUILD_EFFORT
    return index


def new_clusters(faiss: Any, count: int, width: int, *, codes: bool = False) -> Any:
    """Create an untrained IVF index for `count` vectors, storing them unchanged or quantised."""
    num_clusters, metric = max(1, int(count**0.5)), faiss.METRIC_INNER_PRODUCT
    centres = faiss.IndexFlatIP(width)
    if codes:
        wanted = max(1, width // NUMBERS_PER_CODE)
        num_codes = max(n for n in range(1, wanted + 1) if width % n == 0)
        index = faiss.IndexIVFPQ(centres, width, num_clusters, num_codes, 8, metric)
        index.pq.cp.min_points_per_centroid = 1
    else:
        index = faiss.IndexIVFFlat(centres, width, num_clusters, metric)
    index.cp.max_points_per_centroid = VECTORS_PER_CLUSTER_TRAINED
    index.cp.min_points_per_centroid = 1
    index.nprobe = max(1, int(num_clusters * SHARE_OF_CLUSTERS_SEARCHED))
    return index
