"""gradspace: image-text retrieval with objectives designed in gradient space."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradspace.analysis.cocos import Cocos, CocosMeter, cocos
    from gradspace.analysis.score_file import load_scores, save_scores
    from gradspace.analysis.weights import score_weights
    from gradspace.indexes.make import index
    from gradspace.indexes.search import search
    from gradspace.loss import RetrievalLoss
    from gradspace.metrics import mean_average_precision, ranks, recall, retrieval_report
    from gradspace.objectives import Objective, list_objectives, objective
    from gradspace.report.compare import compare
    from gradspace.runs.evaluate import evaluate
    from gradspace.runs.mine import mine
    from gradspace.runs.model import load
    from gradspace.scores.positives import Positives, match_ids
    from gradspace.scores.tiles import EmbeddingScores
    from gradspace.training.start import train

    __version__: str

_HOMES = {
    "Cocos": "analysis.cocos",
    "CocosMeter": "analysis.cocos",
    "EmbeddingScores": "scores.tiles",
    "Objective": "objectives",
    "Positives": "scores.positives",
    "RetrievalLoss": "loss",
    "cocos": "analysis.cocos",
    "compare": "report.compare",
    "evaluate": "runs.evaluate",
    "index": "indexes.make",
    "list_objectives": "objectives",
    "load": "runs.model",
    "load_scores": "analysis.score_file",
    "match_ids": "scores.positives",
    "mean_average_precision": "metrics",
    "mine": "runs.mine",
    "objective": "objectives",
    "ranks": "metrics",
    "recall": "metrics",
    "retrieval_report": "metrics",
    "save_scores": "analysis.score_file",
    "score_weights": "analysis.weights",
    "search": "indexes.search",
    "train": "training.start",
}
"""Module of each public name, imported on first use so that importing gradspace is quick."""

__all__ = [
    "Cocos",
    "CocosMeter",
    "EmbeddingScores",
    "Objective",
    "Positives",
    "RetrievalLoss",
    "cocos",
    "compare",
    "evaluate",
    "index",
    "list_objectives",
    "load",
    "load_scores",
    "match_ids",
    "mean_average_precision",
    "mine",
    "objective",
    "ranks",
    "recall",
    "retrieval_report",
    "save_scores",
    "score_weights",
    "search",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # slow, and rarely needed

        return version("gradspace")
    if name not in _HOMES and name != "objectives":
        raise AttributeError(f"module 'gradspace' has no attribute {name!r}")
    if name == "objectives":
        return import_module("gradspace.objectives")
    value = getattr(import_module(f"gradspace.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
