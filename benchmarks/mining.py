"""Suite: hardest negatives over a whole, large training set, in both directions.

`python -m benchmarks.mining` measures all rows in one process, in turns, and shows the fastest.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.case import Batch, Call, Case, Measurement, Run, make_batch
from benchmarks.tables import Table, megabytes, seconds, time_ratio
from gradspace.mining import mine_exact
from gradspace.mining.top import CPU_TILE
from gradspace.scores.represented import Embeddings
from gradspace.scores.tiles import blocks

COSINE = 0.3
"""Cosine of a text and its image."""
CAPTIONS = 5
TOP_TEXTS, TOP_IMAGES = 300, 60
TARGET = 1.5
"""Target for the time, relative to faiss."""

TITLES = {
    "product": "one bare matrix product in tiles (the floor; no list)",
    "ours": f"gradspace mine_exact: {TOP_TEXTS} captions, {TOP_IMAGES} images, own ones left out",
    "faiss": "faiss IndexFlatIP: one search each way, own ones included",
}


def cases(quick: bool) -> list[Case]:
    images, width = (400, 32) if quick else (11_329, 1024)
    return [Case("mining", who, "lists", images, CAPTIONS, width) for who in TITLES]


def prepare(case: Case) -> Call:
    case = replace(case, images=max(case.images, TOP_IMAGES + 1 + TOP_TEXTS // CAPTIONS))
    batch = make_batch(case, COSINE)
    runs: dict[str, Run] = {
        "product": lambda: _product(batch),
        "ours": lambda: _ours(batch),
        "faiss": lambda: _faiss(batch),
    }
    if case.who not in runs:
        raise ValueError(f"nobody is called {case.who!r}")
    return Call(runs[case.who])


def _product(b: Batch) -> dict[str, float]:
    height, width = CPU_TILE
    memory = torch.empty(height * width)
    for rows in blocks(len(b.images), height):
        for columns in blocks(len(b.texts), width):
            images, texts = b.images[rows], b.texts[columns]
            scores = memory[: len(images) * len(texts)].view(len(images), len(texts))
            torch.mm(images, texts.t(), out=scores)
    return {}


def _ours(b: Batch) -> dict[str, float]:
    names = [str(index) for index in range(len(b.images))]
    captions = [str(index) for index in range(len(b.texts))]
    embeddings = Embeddings(b.images, b.texts, b.image_ids, b.text_ids, names, captions)
    lists = mine_exact(embeddings, top_texts=TOP_TEXTS, top_images=TOP_IMAGES)
    return {
        "texts": float(lists.text_scores.mean(dtype=np.float64)),
        "images": float(lists.image_scores.mean(dtype=np.float64)),
    }


def _faiss(b: Batch) -> dict[str, float]:
    """Search by faiss, fetching extra candidates, since a query's own are found as well."""
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())

    def mean_score(queries: Tensor, ids: Tensor, found_in: Tensor, of: Tensor, top: int) -> float:
        num_own = int(torch.bincount(of).max())
        index: Any = faiss.IndexFlatIP(found_in.shape[1])
        index.add(found_in.numpy())
        scores, found = index.search(queries.numpy(), top + num_own)
        others = of.numpy()[found] != ids.numpy()[:, None]
        listed = others & (others.cumsum(1) <= top)
        return float(scores[listed].mean(dtype=np.float64))

    return {
        "texts": mean_score(b.images, b.image_ids, b.texts, b.text_ids, TOP_TEXTS),
        "images": mean_score(b.texts, b.text_ids, b.images, b.image_ids, TOP_IMAGES),
    }


def check(measured: Mapping[Case, Measurement]) -> None:
    """Check that both found the same mean scores, up to ours being in half precision."""
    by_who = {case.who: m.numbers for case, m in measured.items() if not m.failure}
    for name, number in by_who.get("faiss", {}).items():
        ours = by_who["ours"][name]
        if abs(number - ours) > 1e-4:
            raise ValueError(f"faiss finds {name} of mean score {number}, ours of {ours}")


def tables(measured: Mapping[Case, Measurement]) -> list[Table]:
    by_who = {case.who: m for case, m in measured.items()}
    sizes = next(iter(measured))
    title = (
        f"Mining: {sizes.images:,} images x {sizes.images * sizes.captions:,} texts, width "
        f"{sizes.width}; target: {TARGET} times faiss"
    )
    columns = ["what", "seconds", "times the product", "times faiss", "extra MB"]
    rows = [
        [
            TITLES[who],
            seconds(m),
            time_ratio(m, by_who["product"]),
            time_ratio(m, by_who["faiss"]),
            megabytes(m),
        ]
        for who, m in by_who.items()
    ]
    return [Table(title, columns, rows)]


def in_turns(quick: bool, rounds: int) -> dict[Case, Measurement]:
    """Measure all cases in turns in this process, `rounds` times; return the fastest of each."""
    calls = {case: prepare(case) for case in cases(quick)}
    times: dict[Case, list[float]] = {case: [] for case in calls}
    numbers: dict[Case, dict[str, float]] = {}
    for _ in range(rounds):
        for case, call in calls.items():
            start = time.perf_counter()
            numbers[case] = call.run()
            times[case].append(time.perf_counter() - start)
            print(f"{case.who}: {times[case][-1]:.2f} s", flush=True)
    for case, all_times in times.items():
        print(f"{case.who}: median {statistics.median(all_times):.2f} s of {rounds}")
    return {case: Measurement(min(t), min(t), numbers=numbers[case]) for case, t in times.items()}


if __name__ == "__main__":
    import typer
    from rich.console import Console

    def main(
        quick: Annotated[bool, typer.Option(help="Tiny sizes: does everything work?")] = False,
        rounds: Annotated[int, typer.Option(help="How often each is measured.")] = 3,
        threads: int = 2,
    ) -> None:
        """Exact mining next to faiss, in one process."""
        torch.set_num_threads(threads)
        measured = in_turns(quick, rounds)
        check(measured)
        for table in tables(measured):
            Console(width=124).print(table.for_terminal())

    typer.run(main)
