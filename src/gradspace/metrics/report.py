"""Retrieval metrics from ranks: recall, average precision, and the whole report both ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from gradspace.checks import check_count
from gradspace.metrics.ranking import PositiveRanks, rank_both, rank_rows, ranks
from gradspace.scores.positives import Positives, as_positives
from gradspace.scores.tiles import Scores, as_scores, blocks
from gradspace.scores.two_stage import TwoStageScores

CROSS_RANK_LIMITS = (1, 5, 10, 20, 50, 100, 200)


def recall(
    scores: Tensor | Scores, positives: Tensor | Positives, ks: Sequence[int] = (1, 5, 10)
) -> dict[int, float]:
    """R@k in percent: queries whose best positive ranks k or better, of those that have a positive.

    >>> recall(torch.eye(4), torch.eye(4, dtype=torch.bool))
    {1: 100.0, 5: 100.0, 10: 100.0}
    """
    best = ranks(scores, positives)
    return _recall(best[best.isfinite()], ks)


def mean_average_precision(
    scores: Tensor | Scores, positives: Tensor | Positives, k: int = 5
) -> float:
    """mAP@k in [0, 1], mean over the queries that have a positive.

    The precision at a positive is its rank among the positives over its rank among all, ties halved
    in both; positives that rank behind k are left out; the sum is divided by min(k, positives).
    """
    check_count("k", k)
    return _mean_average_precision(rank_rows(scores, positives), k)


@dataclass(frozen=True)
class DirectionReport:
    """All metrics of one direction; recalls in percent, mAP in [0, 1] (`str` shows percent)."""

    recall: dict[int, float]
    average_recall: float
    median_rank: float
    mean_rank: float
    map_at_5: float
    num_queries: float


@dataclass(frozen=True)
class RetrievalReport:
    """All metrics, both ways. `to_dict` is made for JSON, `str` for people."""

    image_to_text: DirectionReport
    text_to_image: DirectionReport
    rsum: float
    """Sum of all recalls."""
    cross_rank: dict[str, float]
    """Number of positive pairs by cross-retrieval rank (AOQ supplement, Figure 1)."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        ks = list(self.image_to_text.recall)
        head = f"{'':>15}" + "".join(f"{f'R@{k}':>7}" for k in ks)
        lines = [head + f"{'average':>9}{'median r':>10}{'mean r':>9}{'mAP@5':>7}{'queries':>9}"]
        for name in ("image_to_text", "text_to_image"):
            d: DirectionReport = getattr(self, name)
            lines.append(
                f"{name.replace('_to_', ' -> '):>15}"
                + "".join(f"{d.recall[k]:7.1f}" for k in ks)
                + f"{d.average_recall:9.1f}{d.median_rank:10.1f}{d.mean_rank:9.1f}"
                + f"{100 * d.map_at_5:7.1f}{d.num_queries:9.0f}"
            )
        return "\n".join([*lines, f"{'rsum':>15}{self.rsum:7.1f}"])


def retrieval_report(
    scores: Tensor | Scores | TwoStageScores,
    positives: Tensor | Positives,
    ks: Sequence[int] = (1, 5, 10),
    folds: int = 1,
) -> RetrievalReport:
    """Every metric in both directions from `scores[image, text]`, each score computed once.

    With `folds`, the images are cut into that many equal parts in their order, each part is
    evaluated with its own texts, and every number is the mean over the parts (COCO "1K": 5 folds).
    """
    return report_of(rank_folds(scores, positives, folds), ks)


@dataclass(frozen=True)
class RankedFold:
    """The ranks of one part of a test set, both ways."""

    by_image: PositiveRanks
    by_text: PositiveRanks
    positives: Positives
    """Of every image of the part."""
    images: slice
    texts: Tensor
    """Which ones are in the part."""


def rank_folds(
    scores: Tensor | Scores | TwoStageScores, positives: Tensor | Positives, folds: int = 1
) -> list[RankedFold]:
    """Rank every positive of `scores[image, text]`, in one part or in equal ones."""
    source = scores if isinstance(scores, TwoStageScores) else as_scores(scores)
    pairs = as_positives(positives)
    num_images = source.shape[0]
    if folds < 1 or num_images % folds:
        raise ValueError(f"{num_images} images cannot be cut into {folds} equal folds")
    if folds == 1:
        by_image, by_text = rank_both(source, pairs)
        texts = torch.arange(source.shape[1])
        return [RankedFold(by_image, by_text, pairs, slice(0, num_images), texts)]
    found = []
    for fold in blocks(num_images, num_images // folds):
        part, texts = pairs.part(fold.start, fold.stop)
        if not len(texts):
            raise ValueError(f"images {fold.start} to {fold.stop - 1}, a fold, have no text at all")
        by_image, by_text = rank_both(source.part(fold, texts), part)
        found.append(RankedFold(by_image, by_text, part, fold, texts))
    return found


def report_of(ranked: Sequence[RankedFold], ks: Sequence[int] = (1, 5, 10)) -> RetrievalReport:
    """Every metric, the mean over the folds."""
    reports = [_report(fold, ks) for fold in ranked]
    if len(reports) == 1:
        return reports[0]
    return _from_dict(_mean_of([report.to_dict() for report in reports]))


def cross_retrieval_ranks(
    by_image: PositiveRanks, by_text: PositiveRanks, positives: Positives
) -> Tensor:
    """max(k r_i - (k - 1), r_t) of every positive pair, k the number of texts per image (AOQ).

    r_i ranks the pair among the images for its text, r_t among the texts for its image, each
    against negatives only.
    """
    _, text = positives.pairs()
    r_t = by_image.among_negatives[by_image.valid]
    r_i = torch.empty_like(r_t)
    r_i[text.argsort(stable=True)] = by_text.among_negatives[by_text.valid]
    k = positives.num_candidates / positives.num_queries
    return torch.maximum(k * r_i - (k - 1), r_t)


def _report(fold: RankedFold, ks: Sequence[int]) -> RetrievalReport:
    by_image, by_text = fold.by_image, fold.by_text
    i2t, t2i = _direction(by_image, ks), _direction(by_text, ks)
    cross = cross_retrieval_ranks(by_image, by_text, fold.positives.to(by_image.valid.device))
    return RetrievalReport(
        image_to_text=i2t,
        text_to_image=t2i,
        rsum=sum(i2t.recall.values()) + sum(t2i.recall.values()),
        cross_rank=_cross_rank_histogram(cross),
    )


def _direction(found: PositiveRanks, ks: Sequence[int]) -> DirectionReport:
    best = found.best[found.valid.any(1)]
    recalls = _recall(best, ks)
    return DirectionReport(
        recall=recalls,
        average_recall=sum(recalls.values()) / len(recalls),
        median_rank=float(best.quantile(0.5)) if len(best) < 1 << 24 else float(best.median()),
        mean_rank=float(best.mean()),
        map_at_5=_mean_average_precision(found, 5),
        num_queries=float(len(best)),
    )


def _recall(best: Tensor, ks: Sequence[int]) -> dict[int, float]:
    if not isinstance(ks, Sequence) or not ks:
        raise ValueError(f"ks must be ranks such as (1, 5, 10), got {ks!r}")
    for k in ks:
        check_count("every k of ks", k)
    return {k: 100 * float((best <= k).double().mean()) for k in ks}


def _mean_average_precision(found: PositiveRanks, k: int) -> float:
    rank = found.overall
    counted = found.valid & (rank <= k)
    total = (found.among_positives / rank).where(counted, 0).sum(1)
    num_positives = found.valid.sum(1)
    precision = total / num_positives.clamp(min=1, max=k)
    return float(precision[num_positives > 0].mean())


def _cross_rank_histogram(cross: Tensor) -> dict[str, float]:
    edges = torch.tensor([0, *CROSS_RANK_LIMITS], dtype=cross.dtype, device=cross.device)
    counts = torch.bucketize(cross, edges).bincount(minlength=len(edges) + 1)[1:].tolist()
    names = ["1", *(f"{a + 1}-{b}" for a, b in pairwise(CROSS_RANK_LIMITS))]
    return dict(zip([*names, f">{CROSS_RANK_LIMITS[-1]}"], map(float, counts), strict=True))


def _mean_of(values: list[Any]) -> Any:
    """Mean of equally shaped nested dictionaries, number by number."""
    if isinstance(values[0], dict):
        return {key: _mean_of([value[key] for value in values]) for key in values[0]}
    return sum(values) / len(values)


def _from_dict(values: dict[str, Any]) -> RetrievalReport:
    return RetrievalReport(
        image_to_text=DirectionReport(**values["image_to_text"]),
        text_to_image=DirectionReport(**values["text_to_image"]),
        rsum=values["rsum"],
        cross_rank=values["cross_rank"],
    )
