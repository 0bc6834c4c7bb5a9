"""Analysis of a finished run on its training set (ICR section 5).

The best weights are frozen, without dropout. The whole training set is encoded once and cut into
random batches as in training; in every batch the contributing samples are counted (COCOS, Tables
2 to 4), and the scores of positives and hardest negatives are collected.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gradspace.analysis.cocos import Convention, Counting
from gradspace.analysis.diagrams import real_triplets, some_triplets
from gradspace.analysis.score_file import SavedScores
from gradspace.analysis.tables import cocos_json, count_contributions
from gradspace.data.dataset import Split
from gradspace.data.order import epoch_order
from gradspace.data.pair_ids import PairIds, ids_by_image
from gradspace.files import write_atomically
from gradspace.objectives import Objective
from gradspace.runs.recipe_tables import TrainingRecipe
from gradspace.scores.positives import match_ids
from gradspace.scores.represented import Parts, Represented

MOST_IMAGES = 1024
"""Largest number of images of a batch to count in, as the count needs a matrix of scores."""
BIN = 0.02
"""Width of a bin in a histogram of scores, whose middle is score 0."""
TRIPLETS_PER_BATCH = 10
MOST_TRIPLETS = 1500


@dataclass(frozen=True)
class RunAnalysis:
    """Contents of a run's analysis.json."""

    objective: str
    epsilon: float
    num_batches: int
    cocos: dict[str, dict[str, dict[str, float]]]
    """direction -> count -> mean and std over batches"""
    positives: list[int]
    """Histogram of the scores of positives, over `edges`, both directions."""
    hardest: list[int]
    """Histogram of the scores of hardest negatives, likewise."""
    triplets: list[tuple[float, float]]
    """Evenly spaced examples of (positive, hardest negative)."""
    seconds_per_batch: float | None = None
    """Duration of a training batch, if it was measured."""
    convention: Convention = "gradient"

    @property
    def counting(self) -> Counting:
        return Counting(self.epsilon, self.convention)


def edges(num_bins: int) -> NDArray[np.float64]:
    """Return the edges of a histogram: 100 bins are for cosines, 200 for scores in [-2, 2]."""
    return np.linspace(-BIN * num_bins / 2, BIN * num_bins / 2, num_bins + 1)


def analyse_run(
    objective: Objective,
    found: Represented,
    train: Split,
    training: TrainingRecipe,
    counting: Counting | None = None,
    ids: PairIds | None = None,
) -> RunAnalysis:
    """Count and collect over all batches of one epoch of the training set.

    `ids` are the positives of the objective, by default every image's own captions.
    """
    counting = counting or Counting()
    limits = edges(200 if isinstance(found, Parts) else 100)
    positives = np.zeros(len(limits) - 1, dtype=np.int64)
    hardest = np.zeros_like(positives)
    triplets: list[tuple[float, float]] = []

    def collected(batches: Iterator[SavedScores]) -> Iterator[SavedScores]:
        for batch in batches:
            p, n = (scores.numpy() for scores in real_triplets(batch))
            positives[:] += np.histogram(p, limits)[0]
            hardest[:] += np.histogram(n, limits)[0]
            triplets.extend(some_triplets(batch, TRIPLETS_PER_BATCH))
            yield batch

    batches = collected(score_batches(found, train, training, ids or ids_by_image(train)))
    counts = count_contributions([objective], batches, counting)
    return RunAnalysis(
        objective=objective.name,
        epsilon=counting.epsilon,
        convention=counting.convention,
        num_batches=len(counts[objective.name]["image_to_text"]),
        cocos=cocos_json(counts)[objective.name],
        positives=positives.tolist(),
        hardest=hardest.tolist(),
        triplets=triplets[:: -(-len(triplets) // MOST_TRIPLETS)],
    )


def score_batches(
    found: Represented, train: Split, training: TrainingRecipe, ids: PairIds
) -> Iterator[SavedScores]:
    """Yield score matrices of random training batches."""
    per_image = training.captions_per_image
    num_items = len(train.captions if per_image == 1 else train.image_names)
    size = min(training.batch_size, MOST_IMAGES, num_items)
    plans = epoch_order(train, batch_size=size, captions_per_image=per_image, seed=0, epoch=0)
    for plan in plans:
        images, captions = torch.from_numpy(plan.images), torch.from_numpy(plan.captions)
        scores = found.block(images, captions).cpu()
        yield SavedScores(scores, match_ids(ids.images[images], ids.captions[captions]))


def save_analysis(path: Path, analysis: RunAnalysis) -> None:
    with write_atomically(path) as file:
        json.dump(asdict(analysis), file)


def load_analysis(path: Path) -> RunAnalysis:
    try:
        return RunAnalysis(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path} is not the analysis of a run ({error}): delete it") from error
