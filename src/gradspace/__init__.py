"""gradspace: image-text retrieval with objectives designed in gradient space."""

from importlib.metadata import version

from gradspace.analysis.cocos import Cocos, CocosMeter, cocos
from gradspace.analysis.score_file import save_scores
from gradspace.analysis.weights import score_weights
from gradspace.loss.retrieval_loss import RetrievalLoss
from gradspace.metrics import mean_average_precision, ranks, recall, retrieval_report
from gradspace.objectives import Objective, objective, objectives
from gradspace.scores.positives import match_ids
from gradspace.scores.tiles import EmbeddingScores

__version__ = version("gradspace")

__all__ = [
    "Cocos",
    "CocosMeter",
    "EmbeddingScores",
    "Objective",
    "RetrievalLoss",
    "cocos",
    "match_ids",
    "mean_average_precision",
    "objective",
    "objectives",
    "ranks",
    "recall",
    "retrieval_report",
    "save_scores",
    "score_weights",
]
