"""Completion of a trained run: its results on a split, and its analysis."""

from __future__ import annotations

from dataclasses import replace

import torch

from gradspace.analysis.cocos import Counting
from gradspace.data.dataset import Dataset, Split
from gradspace.data.shards.sample import sampled
from gradspace.models import Reranker
from gradspace.models.temperature import current_objective
from gradspace.runs.analysis import RunAnalysis, analyse_run, load_analysis, save_analysis
from gradspace.runs.card import write_card
from gradspace.runs.data import recipe_ids
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
"""Number of candidates re-ranked by a model that embeds and also scores pairs."""


def evaluate_run(
    run: Run,
    dataset: Dataset,
    device: torch.device,
    split: str = "test",
    folds: int = 1,
    counting: Counting | None = None,
) -> None:
    """Write the results and the analysis of a run, unless they exist with this counting."""
    chosen = dataset.split(split)
    saved_at = run.best.stat().st_mtime_ns if run.best.exists() else None
    system = load_system(run.folder, device)
    known = load_analysis(run.analysis) if run.analysis.exists() else None
    if known is None or (counting is not None and known.counting != counting):
        analysis = analysis_of(run, dataset, system, counting)
        seconds = known.seconds_per_batch if known else None
        save_analysis(run.analysis, replace(analysis, seconds_per_batch=seconds))
    if not run.results(split, folds).exists():
        save_results(
            run.results(split, folds), results_of(_evaluation(system, chosen, folds), dataset.name)
        )
        write_card(run, run.folder)
    if run.best.stat().st_mtime_ns != saved_at:
        run.forget_results()
        raise ValueError(
            f"{run.folder} is still in training, and found better weights during its evaluation: "
            "try again"
        )


def analysis_of(
    run: Run, dataset: Dataset, system: System, counting: Counting | None = None
) -> RunAnalysis:
    """Analyse what contributes at the best weights, over the whole training set.

    A stream is analysed over a sample of it.
    """
    train_split, recipe = sampled(dataset).split("train"), run.recipe()
    found = represent_split(system, train_split, store=torch.device("cpu"))
    objective = current_objective(build_objective(recipe), system.model.learned_scale())
    ids = recipe_ids(recipe, train_split)
    return analyse_run(objective, found, train_split, recipe.training, counting, ids)


def _evaluation(system: System, split: Split, folds: int) -> Evaluation:
    """Evaluate a split; a model that embeds and also scores pairs re-ranks, as published."""
    found = represent_split(system, split)
    scores: Scores | TwoStageScores = found.scores()
    if isinstance(system.model, Reranker) and isinstance(found, Embeddings):
        scores = rerank_split(system, split, found, RERANKED)
    return Evaluation(scores, found.positives(), split, folds)
