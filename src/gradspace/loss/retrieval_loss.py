"""`RetrievalLoss`: an objective on a batch of embeddings or scores, in both directions."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from gradspace.checks import (
    Ids,
    check_count,
    check_embeddings,
    check_finite,
    check_scores,
    check_tensor,
)
from gradspace.execution.block import Executor
from gradspace.execution.choice import (
    Execution,
    Kernels,
    choose,
    choose_kernels,
    choose_without_kernels,
)
from gradspace.execution.dense import score_matrix
from gradspace.execution.distributed import Items, Processes
from gradspace.execution.scaled import both_ways
from gradspace.execution.triton import fused, tiled, whole_rows
from gradspace.loss.last_batch import LastBatch
from gradspace.loss.memory import Memory
from gradspace.loss.mined import MinedScores, Offline
from gradspace.loss.pairing import Pairing
from gradspace.objectives import Objective, as_objective
from gradspace.objectives.contract import Reduction
from gradspace.objectives.statistics import OfflineScores
from gradspace.scores.tiles import as_computed

UNIT_TOLERANCE = 0.02

ChoiceT = TypeVar("ChoiceT", bound=str)


class RetrievalLoss(nn.Module):
    """Loss of image and text embeddings: an objective in both directions, as one number.

    Inputs: `images` [n, d] and `texts` [m, d]; equal `image_ids` and `text_ids` belong together.
    Without ids, image i belongs to text i. `image_ids` [n, k] gives every image several ids, for
    captions that describe many images: it belongs to every text with one of them. Triton kernels
    compare single ids only; "auto" then picks torch.

    `offline` holds negatives that were mined for every pair (image i, text i). An objective with
    terms for mined negatives uses them there; for any other they are further candidates.

    Under torch.distributed every process passes its own images and texts, possibly none. The batch
    is then that of all processes together, and the value is the same in each. The mean of the
    processes' gradients, as DistributedDataParallel computes it, is the gradient that one process
    would have with the whole batch.

    Args:
        objective: an objective or its name.
        reduction: "sum" over the queries of both directions, or "mean", the average of the two
            directions' means over their queries; the default is that of the publication. Queries
            without a positive are not counted.
        normalize: True scales every embedding to length 1 first; False leaves them unchanged. The
            default leaves them unchanged, but warns if the first batch is not of unit length:
            margins and temperatures are chosen for cosines.
        positives: "ids", or "position" to pair image i with text i regardless of ids, so that
            other captions of the same image are negatives, as in most published code.
        memory: number of past images and texts to keep as further negatives.
        execution: "dense" builds the score matrix and "streamed" never does, both in torch;
            "triton" runs kernels on a CUDA device, at any size; "auto" picks the fastest.
        tile: side of the tiles of the streamed execution; smaller ones need less memory.
        checks: reject NaN, and batches without any pair. An error in a batch on a GPU is raised one
            batch later, because asking at once would synchronise. Shapes are always checked.

    Examples:
        >>> loss = RetrievalLoss("triplet-hard")
        >>> images = torch.eye(3, requires_grad=True)
        >>> loss(images, torch.eye(3)).item()
        0.0
    """

    def __init__(
        self,
        objective: Objective | str,
        *,
        reduction: Reduction | None = None,
        normalize: bool | None = None,
        positives: Literal["ids", "position"] = "ids",
        memory: int = 0,
        execution: Execution = "auto",
        tile: int | None = None,
        checks: bool = True,
    ) -> None:
        super().__init__()
        self.objective = as_objective(objective)
        self.reduction = _one_of("reduction", reduction or self.objective.reduction, "sum", "mean")
        self.normalize = normalize
        self._unseen = normalize is None
        self.positives = _one_of("positives", positives, "ids", "position")
        self.memory = Memory(memory) if memory else None
        self.execution = _one_of("execution", execution, "auto", "dense", "streamed", "triton")
        self.tile = tile
        self.checks = checks
        self._last_batch = LastBatch()
        if tile is not None:
            check_count("tile", tile)
        if memory and execution == "dense":
            raise ValueError('a memory does not work with execution="dense"; leave it at "auto"')

    def forward(
        self,
        images: Tensor,
        texts: Tensor,
        image_ids: Ids | None = None,
        text_ids: Ids | None = None,
        offline: Offline | None = None,
    ) -> Tensor:
        processes = Processes.current()
        pairing = self._pairing(image_ids, text_ids)
        if processes.number == 1:
            self._check(images, texts, pairing, offline)
        else:
            self._check_everywhere(processes, images, texts, pairing, offline)
        if self._unseen and not torch.compiler.is_compiling():
            self._unseen = False
            _warn_of_lengths(images, texts)
        with _full_precision(images.device.type):
            if self.normalize:
                images, texts = _unit(images), _unit(texts)
                offline = offline and offline.each(_unit)
            terms = offline.terms(images, texts) if offline and self._has_terms else None
            alone = processes.number == 1 and self.memory is None and (not offline or terms)
            choice = choose(
                *(self.execution, self.tile, self.objective, images, texts),
                alone=bool(alone),
                terms=terms is not None,
                several_ids=pairing.several,
            )
            if choice.kernels:
                value = self._of_kernels(choice.kernels, images, texts, pairing)
                if value is not None:
                    return value
                choice = choose_without_kernels(self.execution, images, texts, self.tile)
            self._remember_sums(images, texts)
            if choice.executor is None:
                scores = score_matrix(self.objective, images, texts)
                return self._of_matrix(scores, pairing, terms)
            by_position = pairing.ids is None
            extra = offline.items(by_position) if offline and not terms else None
            scaled = self._scaled
            if torch.compiler.is_compiling():  # tiles break the graph, and gain nothing from one
                scaled = torch.compiler.disable(scaled)  # type: ignore[no-untyped-call]
            sides = pairing.items(images, texts, processes)
            return scaled(*sides, choice.executor, processes, by_position, terms, extra)

    def of_scores(
        self,
        scores: Tensor,
        image_ids: Ids | None = None,
        text_ids: Ids | None = None,
        offline: MinedScores | None = None,
    ) -> Tensor:
        """Compute the loss from `scores[image, text]` instead of embeddings, in one process."""
        pairing = self._pairing(image_ids, text_ids)
        check_scores(scores)
        if self.checks and not torch.compiler.is_compiling():
            check_finite("scores", scores)
        pairing.check(scores.shape[0], scores.shape[1])
        if self.normalize or self.memory is not None:
            raise ValueError(
                "of_scores has no embeddings to normalize or remember; give RetrievalLoss neither "
                "normalize=True nor a memory"
            )
        with _full_precision(scores.device.type):
            one_id = offline is None and not pairing.several
            if one_id and choose_kernels(self.objective, scores, scores.t()) == "rows":
                pairs = pairing.where(len(scores), scores.device)
                return whole_rows.of_scores(self.objective, self.reduction, scores, pairs)
            return self._of_matrix(as_computed(scores), pairing, offline)

    @property
    def _has_terms(self) -> bool:
        return self.objective.uses_offline

    def extra_repr(self) -> str:
        return f"{self.objective}, reduction={self.reduction!r}, normalize={self.normalize}"

    # --- executions -----------------------------------------------------------------------------

    def _of_kernels(
        self, kernels: Kernels, images: Tensor, texts: Tensor, pairing: Pairing
    ) -> Tensor | None:
        """Compute the value by kernels; None if these cannot be compiled here."""
        run = self._of_rows if kernels == "rows" else self._of_tiles
        return fused.or_else(
            lambda: run(images, texts, pairing), lambda: whole_rows.give_up(self.objective)
        )

    def _of_rows(self, images: Tensor, texts: Tensor, pairing: Pairing) -> Tensor:
        pairs = pairing.where(images.shape[0], images.device)
        value, facts = whole_rows.of_embeddings(
            self.objective, self.reduction, images, texts, pairs
        )
        if self.checks:
            self._last_batch.remember(facts, images, texts)
        return value

    def _of_tiles(self, images: Tensor, texts: Tensor, pairing: Pairing) -> Tensor:
        self._remember_sums(images, texts)
        slots = pairing.slots(len(images), images.device)
        return tiled.of_embeddings(self.objective, self.reduction, images, texts, slots)

    def _remember_sums(self, images: Tensor, texts: Tensor) -> None:
        if self.checks:
            self._last_batch.remember_sums(images, texts)

    def _of_matrix(self, scores: Tensor, pairing: Pairing, mined: MinedScores | None) -> Tensor:
        """Compute the value from the whole score matrix."""
        by_image, by_text = (
            (self.objective(rows.scores, rows.positives, rows.offline), rows.positives.any_valid)
            for rows in pairing.rows(scores, mined)
        )
        return self._reduce((by_image[0], by_image[1].sum()), (by_text[0], by_text[1].sum()))

    def _scaled(
        self,
        images: Items,
        texts: Items,
        executor: Executor,
        processes: Processes,
        by_position: bool,
        offline: tuple[OfflineScores, OfflineScores] | None,
        extra: tuple[Items, Items] | None,
    ) -> Tensor:
        """Compute the value without a score matrix, over all processes, memory and mined negatives.

        Each process returns the total over the processes. Backward sums the gradients that all of
        them start with, and so multiplies by their number; taking their mean divides by it again.
        """
        by_image, by_text = both_ways(
            self.objective,
            images,
            texts,
            executor=executor,
            processes=processes,
            aligned=by_position and processes.number == 1,
            memory=self.memory.recall(images.embeddings) if self.memory else None,
            extra=extra,
            offline=offline,
        )
        if self.memory and self.training and not torch.is_inference_mode_enabled():
            now = [processes.gather_items(items) for items in (images, texts)]
            self.memory.remember(*(items.without_ids() if by_position else items for items in now))
        return processes.total(self._reduce(by_image, by_text))

    def _reduce(self, by_image: tuple[Tensor, Tensor], by_text: tuple[Tensor, Tensor]) -> Tensor:
        """Reduce both sides' values, given with the number of queries that have a positive."""
        (image_values, num_images), (text_values, num_texts) = by_image, by_text
        if self.reduction == "sum":
            return image_values.sum() + text_values.sum()
        image_mean = image_values.sum() / num_images.clamp(min=1)
        return (image_mean + text_values.sum() / num_texts.clamp(min=1)) / 2

    def _pairing(self, image_ids: Ids | None, text_ids: Ids | None) -> Pairing:
        return Pairing(image_ids, text_ids, self.positives == "position")

    # --- checks ---------------------------------------------------------------------------------

    def _check(
        self,
        images: Tensor,
        texts: Tensor,
        pairing: Pairing,
        offline: Offline | None,
        may_be_empty: bool = False,
    ) -> None:
        self._last_batch.check()
        at_once = self.checks and not (isinstance(images, Tensor) and images.is_cuda)
        check_embeddings(images, texts, may_be_empty=may_be_empty, values=at_once)
        if offline is not None:
            offline.check(images, texts, values=at_once)
        pairing.check(images.shape[0], texts.shape[0])
        if images is texts:
            raise ValueError(
                "images and texts are one tensor, in which every item would be its own positive; "
                "the two sides must be different things, such as two views of each item"
            )

    def _check_everywhere(
        self,
        processes: Processes,
        images: Tensor,
        texts: Tensor,
        pairing: Pairing,
        offline: Offline | None,
    ) -> None:
        """Raise an error of one process in all of them, which would otherwise wait for it."""
        check_tensor("images", images)  # the exchange with the others needs its device
        problem = ""
        try:
            self._check(images, texts, pairing, offline, may_be_empty=True)
        except ValueError as error:
            problem = str(error)
        width = images.shape[1] if images.dim() == 2 else None
        kind = f"{' '.join(str(self).split())}, {images.dtype}, width {width}"
        kind += ", offline negatives" if offline else ""
        kind += f", ids {pairing.ids_of_each}" if pairing.several else ""
        processes.agree(kind, problem, images.device)


def _full_precision(device: str) -> AbstractContextManager[object]:
    """Disable autocast, without the cost of a context if it is off."""
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


def _unit(embeddings: Tensor) -> Tensor:
    return nn.functional.normalize(as_computed(embeddings), dim=1)


def _warn_of_lengths(*sides: Tensor) -> None:
    """Warn about embeddings that are not normalized, allowing for half precision's rounding."""
    lengths = torch.cat([as_computed(side.detach()).norm(dim=1) for side in sides if len(side)])
    shortest, longest = (float(end) for end in lengths.aminmax())
    if shortest < 1 - UNIT_TOLERANCE or longest > 1 + UNIT_TOLERANCE:
        warnings.warn(
            f"embeddings have lengths from {shortest:.3g} to {longest:.3g}, but objectives are "
            "made for cosines: pass normalize=True to RetrievalLoss, or normalize=False to keep "
            "them",
            stacklevel=4,
        )


def _one_of(name: str, value: ChoiceT, *choices: str) -> ChoiceT:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return value
