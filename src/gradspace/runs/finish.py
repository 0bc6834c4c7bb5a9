"""What a trained run is completed with: its results on a split, and its analysis."""

from __future__ import annotations

import torch

from gradspace.data.dataset import Dataset, Split
from gradspace.models import Reranker
from gradspace.models.temperature import current_objective
from gradspace.runs.analysis import analyse_run, save_analysis
from gradspace.runs.evaluate import Evaluation
from gradspace.runs.folder import Run
from gradspace.runs.recipe import build_objective
from gradspace.runs.represent import represent_split, rerank_split
from gradspace.runs.results import results_of, save_results
from gradspace.runs.system import System, load_system
from gradspace.scores.represented import Embeddings
from gradspace.scores.tiles import Scores
from gradspace.scores.two_stage import TwoStageScores

RERANKED = 128
"""Candidates that a model which embeds and scores pairs puts in order."""


def evaluate_run(
    run: Run, dataset: Dataset, device: torch.device, split: str = "test", folds: int = 1
) -> None:
    """Write the results of a run and its analysis, where they are missing."""
    chosen = dataset.split(split)
    saved_at = run.best.stat().st_mtime_ns if run.best.exists() else None
    system = load_system(run.folder, device)
    if not run.analysis.exists():
        train_split = dataset.splits["train"]
        found = represent_split(system, train_split, store=torch.device("cpu"))
        recipe = run.recipe()
        objective = current_objective(build_objective(recipe), system.model.learned_scale())
        analysis = analyse_run(objective, found, train_split, recipe.training)
        save_analysis(run.analysis, analysis)
    if not run.results(split, folds).exists():
        save_results(
            run.results(split, folds), results_of(_evaluation(system, chosen, folds), dataset.name)
        )
    if run.best.stat().st_mtime_ns != saved_at:
        run.forget_results()
        raise ValueError(
            f"{run.folder} is in training, and found better weights while it was evaluated: try "
            "again"
        )


def _evaluation(system: System, split: Split, folds: int) -> Evaluation:
    """A model that embeds and scores pairs re-ranks, as it is published."""
    found = represent_split(system, split)
    scores: Scores | TwoStageScores = found.scores()
    if isinstance(system.model, Reranker) and isinstance(found, Embeddings):
        scores = rerank_split(system, split, found, RERANKED)
    return Evaluation(scores, found.positives(), split, folds)
