"""Retrieval metrics, from scores (a matrix, or embeddings) and positives."""

from gradspace.metrics.measures import mean_average_precision, recall
from gradspace.metrics.ranking import PositiveRanks, rank_both, rank_rows, ranks
from gradspace.metrics.registry import METRICS, metric
from gradspace.metrics.report import (
    DirectionReport,
    RankedFold,
    RetrievalReport,
    cross_retrieval_ranks,
    rank_folds,
    report_of,
    retrieval_report,
)
from gradspace.metrics.trec import write_trec_qrels, write_trec_run

__all__ = [
    "METRICS",
    "DirectionReport",
    "PositiveRanks",
    "RankedFold",
    "RetrievalReport",
    "cross_retrieval_ranks",
    "mean_average_precision",
    "metric",
    "rank_both",
    "rank_folds",
    "rank_rows",
    "ranks",
    "recall",
    "report_of",
    "retrieval_report",
    "write_trec_qrels",
    "write_trec_run",
]
