"""Page for the documentation: how it was made, the tables, and what they compare."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from datetime import date
from importlib.metadata import version
from pathlib import Path

from benchmarks.measure import GIBIBYTES_PER_CALL, MEASURED_ONCE, SECONDS_PER_CALL, THREADS
from benchmarks.scale import MEGABYTES_TARGET, MINED_TARGET, PEER_SIZES, UNMINED_TARGET
from benchmarks.tables import Table
from gradspace.runs.represent import PICTURES

PACKAGES = ("gradspace", "torch", "numpy", "pytorch-metric-learning", "faiss-cpu")

NOTES = f"""
## How it is measured

Every number is from a process of its own with {THREADS} threads. Time: the median of up to nine
calls after a first one (a first call of over {MEASURED_ONCE} s is the measurement). Memory: the
peak of the first call above what the process held before it, after a tiny call that loads the
libraries. "over {SECONDS_PER_CALL} s" and "over {GIBIBYTES_PER_CALL} GiB" are the limits of one
call. Ratios are the other's number over ours. `python -m benchmarks.measure` measures a single
case.

**Losses.** float32, width 512, random embeddings of length 1 with a cosine of 0.3 between a text
and its image; both directions, gradients to both sides. PML is pytorch-metric-learning, set up to
compute the very same function (distance, reducer, miner: `benchmarks/peers.py`), which
`tests/benchmarking/test_benchmarks.py` proves at small sizes and every run checks at these: a loss
or gradient norm that differs by more than 0.1% stops it. The exception is SmoothAP: PML's takes no
second set, so it gets images and texts concatenated, and it mistakes the samples per class for the
number of classes, so it takes images for the positives of images; its rows show what it costs,
not that it works. The row "one set" is where it is right: 23 classes of 23 samples that retrieve
each other ("images" are classes there). "loop" is the formula in a Python loop over the queries
(`benchmarks/loops.py`); ~ marks a loop that was timed on its first 2,560 texts and the same share
of the images, and extrapolated.

**Scale.** float32, width 512, one caption per image, pairs by position, the same embeddings as
above. The floor is one `torch.mm` of that size into memory that was there before. "streamed" and
"dense" are the executions of `RetrievalLoss`: without and with the score matrix. The targets: at
most {MINED_TARGET} products where only the hardest negatives count (triplet-hard and the
objectives of GOAL), at most {UNMINED_TARGET} where all negatives do, and less than
{MEGABYTES_TARGET} MB; no run asserts them. PML is tried at {PEER_SIZES[0]:,}, then at half of
that, and so on: the first batch that it can compute has a row. Losses are checked to be the same in
every run. `python -m benchmarks.gpu` goes on to 1,048,576 on a GPU: benchmarks-gpu.md.

**Evaluation.** float32, width 1,024, texts with a cosine of 0.1 to their image. faiss and the loops
find only the recalls; ours is the whole report (recalls, median and mean rank, mAP, cross-retrieval
ranks). ~ marks the loops, timed on 100 images and their 500 texts, and extrapolated. All recalls
are checked to be the same in every run.

**Mining.** The lists of `gradspace mine` at a tenth of the size of COCO's training set, five
captions per image, random embeddings as above but 1,024 wide; faiss fetches a few more, to hold the
same lists when what belongs together is taken out. `python -m benchmarks.mining` measures the same
in one process, in turns.

**Training.** VSE++ with its published widths (pooled features of 2,048, GRU and embedding of
1,024), captions of 8 to 15 words, forward + backward, with a loss whose gradient is constant. The
objectives are timed alone, forward + backward to the embeddings: what they add to that step. COCOS
is tracked every 100 steps by default, so that a step pays a hundredth of it. Loaders read their
batches from files that the page cache holds. A whole step is that of `gradspace train`, on features
in memory, with captions of 6 to 14 words; the model alone does forward, backward from a constant
gradient, clipping and the update, the objective alone forward and backward. What is neither is
drawing the batch, tracking and the rest of the loop. The backbone is that of transformers, with
random weights, {PICTURES} photos at a time; `gradspace.processes` keeps what its layers free.

**Pair scores.** float32, width 1,024, captions of 8 to 16 words, forward + backward to the parts of
both sides, one thread; the loop goes over the captions (`benchmarks/pairs.py`). Mean scores and
gradient norms are checked to be the same in every run.
"""


def machine() -> dict[str, str]:
    """Describe the machine and versions the numbers were measured with."""
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    return {
        "cpu": cpu,
        "cores": str(len(os.sched_getaffinity(0))),
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def page(command: str, tables: Iterable[Table]) -> str:
    facts = machine()
    versions = ", ".join(f"{name} {facts[name]}" for name in ("python", *PACKAGES))
    parts = [
        "# Benchmarks",
        f"Written by `{command}` on {facts['date']}: {facts['cpu']}, {facts['cores']} cores; "
        f"{versions}.",
        *(f"## {table.title}\n\n{table.markdown()}" for table in tables),
        NOTES.strip(),
    ]
    return "\n\n".join(parts) + "\n"
