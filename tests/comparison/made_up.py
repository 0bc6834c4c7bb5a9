"""Runs that were never trained: entries with given ranks, for tests of what comes after."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gradspace.comparison.entries import Entry
from gradspace.data.dataset import make_split
from gradspace.runs.analysis import RunAnalysis
from gradspace.runs.evaluate import Evaluation
from gradspace.runs.folder import Run
from gradspace.runs.results import RunResults, results_of
from gradspace.scores.represented import Embeddings

COUNTS = ("per_query", "per_batch", "queries_without", "negative_weight", "positive_weight")


def random_results(
    seed: int, num_images: int = 20, folds: int = 1, captions: str = "caption"
) -> RunResults:
    """Make results of embeddings that match their pairs a little; 1 to 3 captions per image."""
    rng = np.random.default_rng(num_images)
    described = [
        (f"image-{i}", [f"{captions} {i}.{c}" for c in range(rng.integers(1, 4))])
        for i in range(num_images)
    ]
    split = make_split("test", described)
    torch.manual_seed(seed)
    images = torch.nn.functional.normalize(torch.randn(num_images, 8), dim=1)
    owner = torch.from_numpy(split.image_of_caption)
    texts = torch.nn.functional.normalize(images[owner] + 0.8 * torch.randn(len(owner), 8), dim=1)
    ids = torch.arange(num_images)
    found = Embeddings(images, texts, ids, owner, split.image_names, split.captions)
    return results_of(Evaluation(found.scores(), found.positives(), split, folds), "made-up")


def entry(
    objective: str, seed: int, ranks: Mapping[str, NDArray[np.float64]] | None = None
) -> Entry:
    """An entry with random ranks, or with the ones given (five captions per image)."""
    if ranks is None:
        results = random_results(seed)
    else:
        num_images = len(ranks["i2t"])
        images = {"i2t": np.arange(num_images), "t2i": np.repeat(np.arange(num_images), 5)}
        results = RunResults("test", "made-up", "abc", 1, {}, ranks, images)
        recalls = {
            f"{way} R@{k}": 100 * float((ranks[way] <= k).mean())
            for way in ("i2t", "t2i")
            for k in (1, 5, 10)
        }
        metrics = {**recalls, "rsum": sum(recalls.values())}
        results = RunResults("test", "made-up", "abc", 1, metrics, ranks, images)
    counts = {name: {"mean": 1.0 + seed, "std": 0.5} for name in (*COUNTS, "effective")}
    both = {"image_to_text": counts, "text_to_image": counts}
    analysis = RunAnalysis(objective, 0.01, 3, both, [0] * 100, [0] * 100, [(0.5, 0.2)])
    run = Run(Path("runs") / objective / str(seed))
    return Entry("made-up", "VSE++", objective, seed, run, results, analysis)
