"""Retrieval evaluation on a split: the one evaluator behind training, runs and comparisons."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from gradspace.data.dataset import Split
from gradspace.data.pair_ids import ids_by_text
from gradspace.data.readers.scenes import SceneImages, true_relevance
from gradspace.metrics import RankedFold, RetrievalReport, rank_folds, report_of
from gradspace.metrics.eccv import eccv_caption_report, load_metrics
from gradspace.processes import is_first
from gradspace.progress import Progress, Show, silently
from gradspace.runs.data import run_data, run_split
from gradspace.runs.model import LoadedModel, as_model
from gradspace.runs.represent import represent_split, rerank_split
from gradspace.runs.system import System
from gradspace.scores.positives import Positives, as_positives
from gradspace.scores.represented import Embeddings, Parts, Represented, mean_scores
from gradspace.scores.tiles import PairScores, Scores
from gradspace.scores.two_stage import TwoStageScores

TOP = 100
"""Number of candidates that a model proposes for each query."""
ModelSource = LoadedModel | str | Path


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Scores of a split, with all measurements of them, each computed on request."""

    scores: Scores | TwoStageScores
    positives: Positives
    split: Split
    folds: int = 1

    @cached_property
    def ranked(self) -> list[RankedFold]:
        """Ranks of all positives, fold by fold."""
        return rank_folds(self._looked_at, self.positives, self.folds)

    @cached_property
    def report(self) -> RetrievalReport:
        return report_of(self.ranked)

    @cached_property
    def text_report(self) -> RetrievalReport | None:
        """Report in which equal captions of other images are positives too; None without any."""
        if self._by_text is None:
            return None
        return report_of(rank_folds(self._looked_at, self._by_text, self.folds))

    @cached_property
    def _by_text(self) -> Positives | None:
        """Positives of each image by text; None if they are the same as its own captions."""
        found = ids_by_text(self.positives, self.split.captions).positives()
        return found if found.valid.sum() > self.positives.valid.sum() else None

    @cached_property
    def _looked_at(self) -> Scores | TwoStageScores:
        """Scores; of two-stage ones the candidates' pair scores are computed only once."""
        if isinstance(self.scores, PairScores) and self._by_text is not None:
            return self.scores.matrix()
        return self.scores

    @cached_property
    def true_report(self) -> RetrievalReport | None:
        """Report in which every caption that is true of an image is its positive; else None."""
        if not isinstance(self.split.images, SceneImages):
            return None
        truth = as_positives(torch.from_numpy(true_relevance(self.split)).t())
        return report_of(rank_folds(self.scores, truth, self.folds))

    @cached_property
    def eccv(self) -> dict[str, dict[str, float]]:
        """ECCV Caption and CxC metrics, for COCO's test set."""
        images, captions = _coco_ids(self.split)
        if isinstance(self.scores, TwoStageScores):
            raise ValueError("--eccv ranks all candidates: leave --propose and --rerank out")
        scores = self.scores.matrix() if isinstance(self.scores, PairScores) else self.scores
        return eccv_caption_report(scores, images, captions)

    def to_dict(self) -> dict[str, Any]:
        others = {"true_relevance": self.true_report, "by_text": self.text_report}
        told = {name: report.to_dict() if report else None for name, report in others.items()}
        return {**self.report.to_dict(), **told}

    def __str__(self) -> str:
        return str(self.report)


def evaluate(
    models: ModelSource | Sequence[ModelSource],
    data: str | Path | None = None,
    *,
    split: str = "test",
    features: str | Path | None = None,
    folds: int = 1,
    propose: ModelSource | None = None,
    top: int | None = None,
    rerank: int | None = None,
    proposal_weight: float | None = None,
    eccv: bool = False,
    device: str | None = None,
    show: Show = silently,
) -> Evaluation:
    """Measure the retrieval of a run or a pretrained model, both ways.

    Args:
        models: runs, CLIP-like models or loaded ones; the scores of several are averaged.
        data: a dataset other than the run's own; required for pretrained models.
        features: features of that data, or the new location of the run's features.
        folds: number of parts to average the metrics over (COCO 1K: 5).
        propose: a model that embeds; the evaluated one scores only its `top` (100) candidates.
        rerank: re-rank the model's own top N, for models that embed and score pairs.
        proposal_weight: weight of the embeddings' scores in `rerank`; X-VLM and ALBEF publish 0.
        eccv: check first that `Evaluation.eccv` can be computed.

    Examples:
        >>> evaluate("runs/first", split="dev").report.rsum  # doctest: +SKIP
        311.8
    """
    _check_stages(propose, rerank, top, proposal_weight)
    loaded = _load_all(models, propose, data, device)
    splits = [run_split(model.source, split, data, features, show) for model in loaded]
    if eccv:
        load_metrics(_coco_ids(splits[0])[1])
    members = _represent(loaded, splits, show)
    scores: Scores | TwoStageScores
    with show("scoring") as progress:
        if propose:
            scores = _proposed(members, loaded, top or TOP, progress)
        elif rerank:
            scores = _reranked(members, loaded, splits[0], rerank, proposal_weight, progress)
        else:
            scores = _mean(members, folds, progress)
        made = Evaluation(scores, members[0].positives(), splits[0], folds)
        if is_first():  # the slow part, while its progress is shown
            _ = made.ranked, made.text_report
    return made


def _check_stages(
    propose: ModelSource | None,
    rerank: int | None,
    top: int | None,
    proposal_weight: float | None,
) -> None:
    """Raise a ValueError for options that would be ignored."""
    if propose and rerank:
        raise ValueError("give --propose or --rerank, not both: the run proposes for itself")
    if top is not None and not propose:
        raise ValueError("--top goes with --propose: give a model that proposes, or leave it out")
    if proposal_weight is not None and not rerank:
        raise ValueError("--proposal-weight goes with --rerank: give both, or leave it out")


def _load_all(
    models: ModelSource | Sequence[ModelSource],
    propose: ModelSource | None,
    data: str | Path | None,
    device: str | None,
) -> list[LoadedModel]:
    """Load every model, the proposing one last, once it is clear that each has data."""
    sources = [models] if isinstance(models, LoadedModel | str | Path) else list(models)
    sources += [propose] if propose else []
    for source in sources:
        run_data(source.source if isinstance(source, LoadedModel) else Path(source), data)
    return [as_model(source, device) for source in sources]


def _coco_ids(split: Split) -> tuple[list[int], Sequence[int]]:
    """COCO's own ids of the images and captions of its test set."""
    numbers = [re.search(r"(\d+)\.\w+$", name) for name in split.image_names]
    if split.caption_ids is None or not all(numbers):
        raise ValueError("--eccv needs COCO's caption ids: open Karpathy's dataset_coco.json")
    return [int(number[1]) for number in numbers if number], split.caption_ids


def _represent(
    models: Sequence[LoadedModel], splits: Sequence[Split], show: Show
) -> list[Represented]:
    """Represent the split by each model; it must be the same split for all."""
    members = []
    for model, own in zip(models, splits, strict=True):
        if list(own.captions) != list(splits[0].captions):
            raise ValueError(
                f"{model.source} was trained on other data than {models[0].source}: give --data"
            )
        with show("embedding") as progress:
            members.append(represent_split(model.system, own, progress))
    return members


def _mean(members: list[Represented], folds: int, progress: Progress) -> Scores:
    scores = mean_scores(members, progress)
    if isinstance(scores, PairScores) and folds == 1:
        return scores.matrix()  # used by every report
    return scores


def _proposed(
    members: list[Represented], models: list[LoadedModel], top: int, progress: Progress
) -> TwoStageScores:
    scorer, *others, proposer = members
    if others or not isinstance(scorer, Parts):
        raise ValueError(
            "--propose is for one run that scores pairs, such as scan or bfan; "
            + (f"got {len(models) - 1}" if others else f"{models[0].source} embeds")
        )
    if not isinstance(proposer, Embeddings):
        raise ValueError(f"--propose needs a run that embeds, and {models[-1].source} scores pairs")
    return TwoStageScores(proposer.scores(), scorer.scores(progress), top)


def _reranked(
    members: list[Represented],
    models: list[LoadedModel],
    split: Split,
    top: int,
    weight: float | None,
    progress: Progress,
) -> TwoStageScores:
    found, *others = members
    if others or not isinstance(found, Embeddings):
        first = f"{models[0].source} has no embeddings: --propose"
        raise ValueError(
            "--rerank is for one run that embeds and scores pairs, such as fusion; "
            + (f"got {len(members)} runs" if others else first)
        )
    return rerank_split(models[0].system, split, found, top, progress, proposal_weight=weight)


def report_on(system: System, split: Split) -> RetrievalReport:
    """Measure a model on a split during training."""
    found = represent_split(system, split)
    return Evaluation(found.scores(), found.positives(), split).report
