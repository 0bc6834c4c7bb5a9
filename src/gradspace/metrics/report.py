"""Report of all metrics in both directions, on a test set or averaged over its folds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from gradspace.metrics.measures import recall_at
from gradspace.metrics.ranking import PositiveRanks, rank_both
from gradspace.metrics.registry import METRICS
from gradspace.scores.positives import Positives, as_positives
from gradspace.scores.tiles import Scores, as_scores, blocks
from gradspace.scores.two_stage import TwoStageScores

CROSS_RANK_LIMITS = (1, 5, 10, 20, 50, 100, 200)


@dataclass(frozen=True)
class DirectionReport:
    """All metrics of one direction; recalls in percent, mAP in [0, 1] (`str` shows percent)."""

    recall: dict[int, float]
    average_recall: float
    metrics: dict[str, float]
    """Values of all registered metrics, by name."""
    num_queries: float

    @property
    def median_rank(self) -> float:
        return self.metrics["median rank"]

    @property
    def mean_rank(self) -> float:
        return self.metrics["mean rank"]

    @property
    def map_at_5(self) -> float:
        return self.metrics["mAP@5"]

    def to_dict(self) -> dict[str, Any]:
        return {
            "recall": self.recall,
            "average_recall": self.average_recall,
            **{METRICS[name].key: value for name, value in self.metrics.items()},
            "num_queries": self.num_queries,
        }


@dataclass(frozen=True)
class RetrievalReport:
    """All metrics in both directions; `to_dict` is meant for JSON, `str` for people."""

    image_to_text: DirectionReport
    text_to_image: DirectionReport
    rsum: float
    """Sum of all recalls."""
    cross_rank: dict[str, float]
    """Number of positive pairs by cross-retrieval rank (AOQ supplement, Figure 1)."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "image_to_text": self.image_to_text.to_dict(),
            "text_to_image": self.text_to_image.to_dict(),
            "rsum": self.rsum,
            "cross_rank": self.cross_rank,
        }

    def __str__(self) -> str:
        ks = list(self.image_to_text.recall)
        shown = [METRICS[name] for name in self.image_to_text.metrics]
        width = {m.name: max(len(m.heading) + 2, 7 if m.share else 10 - m.decimals) for m in shown}
        head = f"{'':>15}" + "".join(f"{f'R@{k}':>7}" for k in ks) + f"{'average':>9}"
        head += "".join(f"{m.heading:>{width[m.name]}}" for m in shown)
        lines = [head + f"{'queries':>9}"]
        for name in ("image_to_text", "text_to_image"):
            d: DirectionReport = getattr(self, name)
            lines.append(
                f"{name.replace('_to_', ' -> '):>15}"
                + "".join(f"{d.recall[k]:7.1f}" for k in ks)
                + f"{d.average_recall:9.1f}"
                + "".join(
                    f"{m.shown(d.metrics[m.name]):{width[m.name]}.{m.decimals}f}" for m in shown
                )
                + f"{d.num_queries:9.0f}"
            )
        return "\n".join([*lines, f"{'rsum':>15}{self.rsum:7.1f}"])


def retrieval_report(
    scores: Tensor | Scores | TwoStageScores,
    positives: Tensor | Positives,
    ks: Sequence[int] = (1, 5, 10),
    folds: int = 1,
) -> RetrievalReport:
    """Compute every metric in both directions from `scores[image, text]`, each score once.

    With `folds`, the images are split in order into that many equal parts, each part is evaluated
    with its own texts, and every number is the mean over the parts (COCO "1K": 5 folds).
    """
    return report_of(rank_folds(scores, positives, folds), ks)


@dataclass(frozen=True)
class RankedFold:
    """Ranks of one part of a test set, in both directions."""

    by_image: PositiveRanks
    by_text: PositiveRanks
    positives: Positives
    """Positives of the part's images among its texts."""
    images: slice
    texts: Tensor
    """Indices of the part's texts."""


def rank_folds(
    scores: Tensor | Scores | TwoStageScores, positives: Tensor | Positives, folds: int = 1
) -> list[RankedFold]:
    """Rank every positive of `scores[image, text]`, in one part or several equal ones."""
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
    """Compute every metric, averaged over the folds."""
    reports = [_report(fold, ks) for fold in ranked]
    if len(reports) == 1:
        return reports[0]
    return _from_dict(_mean_of([asdict(report) for report in reports]))


def cross_retrieval_ranks(
    by_image: PositiveRanks, by_text: PositiveRanks, positives: Positives
) -> Tensor:
    """Compute max(k r_i - (k - 1), r_t) of every positive pair, k texts per image (AOQ).

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
    best = found.finite_best
    recalls = recall_at(best, ks)
    return DirectionReport(
        recall=recalls,
        average_recall=sum(recalls.values()) / len(recalls),
        metrics={name: info.measure(found) for name, info in METRICS.items()},
        num_queries=float(len(best)),
    )


def _cross_rank_histogram(cross: Tensor) -> dict[str, float]:
    edges = torch.tensor([0, *CROSS_RANK_LIMITS], dtype=cross.dtype, device=cross.device)
    counts = torch.bucketize(cross, edges).bincount(minlength=len(edges) + 1)[1:].tolist()
    names = ["1", *(f"{a + 1}-{b}" for a, b in pairwise(CROSS_RANK_LIMITS))]
    return dict(zip([*names, f">{CROSS_RANK_LIMITS[-1]}"], map(float, counts), strict=True))


def _mean_of(values: list[Any]) -> Any:
    """Average equally shaped nested dictionaries, number by number."""
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
