"""Loss of a batch, and the contributions to its gradient, for either kind of model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradspace import processes
from gradspace.data.batches import Batch
from gradspace.data.pair_ids import PairIds
from gradspace.loss.retrieval_loss import RetrievalLoss
from gradspace.models import PairScorer
from gradspace.models.temperature import current_objective, with_learned_scale
from gradspace.runs.system import System
from gradspace.scores.evaluating import evaluating
from gradspace.training.caching import BatchOutcome, Embedded
from gradspace.training.pair_batches import ScoredBatch, all_parts, score_batch
from gradspace.training.second_round import split_extended
from gradspace.training.tracking import (
    contributions,
    contributions_of_scores,
    offline_contributions,
)


@dataclass(frozen=True)
class BatchLoss:
    """The model with the current objective."""

    system: System
    precision: str
    loss: RetrievalLoss
    ids: PairIds | None
    """Ids of the training split, pinned for a GPU, which replace those of batches, if given."""
    extended: bool
    """Whether batches are followed by their mined pairs; see `second_round`."""

    def embed(self, batch: Batch, num_texts: int) -> Embedded:
        """Embed a part of a batch that has `num_texts` texts over all processes.

        An extra loss is a mean over the texts: a part contributes in proportion to its texts, times
        the number of processes, over which gradients are averaged.
        """
        rows, device = batch.image_of_text(), self.system.device
        with self.system.autocast(self.precision):
            images, texts = self.system.model(
                batch.images.to(device, non_blocking=True),
                batch.tokens.to(device, non_blocking=True),
                batch.lengths,  # which packing needs on the CPU
                None if rows is None else rows.to(device),
                batch.image_ids.to(device, non_blocking=True),
            )
            extra = self.system.model.extra_loss()
        if extra is not None:
            extra = extra * (len(batch.text_ids) * processes.world_size() / num_texts)
        return Embedded(images, texts, extra)

    def value(self, batch: Batch, images: Tensor, texts: Tensor) -> Tensor:
        """Compute the loss of a batch from the embeddings or the parts of both sides."""
        if isinstance(self.system.model, PairScorer):
            found = self._scored(self.system.model, batch, images, texts)
            return self.loss.of_scores(found.scores, found.image_ids, found.text_ids, found.mined)
        (image_ids, text_ids), offline = self._ids(batch), None
        learned = self.system.model.learned_scale()
        images, texts = with_learned_scale(self.loss.objective, images, texts, learned)
        if self.extended:
            ids = image_ids.to(images.device), text_ids.to(images.device)
            (images, texts, *own_ids), offline = split_extended(images, texts, *ids)
            image_ids, text_ids = own_ids
        value: Tensor = self.loss(images, texts, image_ids, text_ids, offline)
        return value

    def vectors(self, outcome: BatchOutcome, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return rows that must not become alike: embeddings, or regions and words."""
        if isinstance(self.system.model, PairScorer):
            return all_parts(outcome.images, outcome.texts, batch.lengths)
        return outcome.images, outcome.texts

    @torch.no_grad()
    def contributions(self, outcome: BatchOutcome, batch: Batch) -> dict[str, Any]:
        """Measure the contributions in the batch of all processes; {} in those that do not log."""
        model, device = self.system.model, self.system.device
        if isinstance(model, PairScorer):
            with evaluating(model):  # without dropout, so that measuring does not change the run
                found = self._scored(model, batch, outcome.images, outcome.texts)
            return contributions_of_scores(self.loss.objective, found)
        image_ids, text_ids = (ids.to(device) for ids in self._ids(batch))
        objective = current_objective(self.loss.objective, model.learned_scale())
        parts = (outcome.images, outcome.texts, image_ids, text_ids)
        of_mined: dict[str, Any] = {}
        if self.extended:
            parts, offline = split_extended(*parts)
            of_mined = offline_contributions(objective, *parts, offline)
        everything = [processes.gather_rows(part) for part in parts]
        if not processes.is_first():
            return {}
        return contributions(objective, *everything) | of_mined

    def _ids(self, batch: Batch) -> tuple[Tensor, Tensor]:
        if self.ids is None:
            return batch.image_ids, batch.text_ids
        return self.ids.images[batch.image_ids], self.ids.captions[batch.captions]

    def _scored(
        self, scorer: PairScorer, batch: Batch, images: Tensor, texts: Tensor
    ) -> ScoredBatch:
        with self.system.autocast(self.precision):
            return score_batch(
                *(scorer, self.loss.objective, batch, images, texts, self._ids(batch)),
                extended=self.extended,
            )
