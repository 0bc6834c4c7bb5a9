"""Dense execution: the whole score matrix in memory, plain autograd, traceable by torch.compile."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradspace.checks import check_same_shape, check_scores
from gradspace.objectives.statistics import (
    LOG_ZERO,
    Hardest,
    LogSumExp,
    OfflineScores,
    PositiveScores,
    Statistic,
    Sum,
)
from gradspace.scores.positives import Positives, as_positives

if TYPE_CHECKING:
    from gradspace.objectives.contract import Objective


def row_values(
    objective: Objective,
    scores: Tensor,
    positives: Tensor | Positives,
    offline: OfflineScores | None = None,
) -> Tensor:
    """Compute the objective's value of every query, [queries], in at least float32."""
    check_scores(scores)
    positives = as_positives(positives)
    check_same_shape((scores.shape[0], scores.shape[1]), positives.shape)
    if scores.dtype in (torch.float16, torch.bfloat16):
        scores = scores.float()
    positive = replace(positive_scores(scores, positives), offline=offline)
    statistics = [reduce(wanted, scores, positives) for wanted in objective.statistics(positive)]
    return objective.value(positive, *statistics).where(positives.any_valid, 0)


def positive_scores(scores: Tensor, positives: Positives) -> PositiveScores:
    values = scores.gather(1, positives.index).where(positives.valid, 0)
    in_batch = values.detach().masked_fill(~positives.valid, torch.inf)
    return PositiveScores(
        scores=values,
        valid=positives.valid,
        num_negatives=positives.num_negatives,
        in_batch=in_batch.flatten(),
    )


def reduce(wanted: Statistic, scores: Tensor, positives: Positives) -> Tensor:
    """Compute one statistic of every query's negatives."""
    match wanted:
        case Hardest():
            negatives = scores.detach().scatter(1, positives.index, -torch.inf)
            index = negatives.argmax(1, keepdim=True)
            exists = negatives.gather(1, index) != -torch.inf  # NaN stays NaN
            return scores.gather(1, index).where(exists, -torch.inf)
        case Sum():
            terms = (wanted.term(scores, given) for given in torch.split(wanted.given, 1, dim=1))
            sums = [term.scatter(1, positives.index, 0).sum(1, keepdim=True) for term in terms]
            return torch.cat(sums, 1)
        case LogSumExp():
            terms = (wanted.term(scores, given) for given in torch.split(wanted.given, 1, dim=1))
            return torch.cat([_log_sum_exp(term, positives) for term in terms], 1)


def _log_sum_exp(term: Tensor, positives: Positives) -> Tensor:
    """Reduce over the negatives; torch.logsumexp would take four times as long on a CPU."""
    term = term.scatter(1, positives.index, LOG_ZERO)
    highest = term.detach().amax(1, keepdim=True)
    return (term - highest).exp_().sum(1, keepdim=True).log() + highest
