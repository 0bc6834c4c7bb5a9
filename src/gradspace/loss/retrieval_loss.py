"""`RetrievalLoss`: an objective on a batch of embeddings or scores, in both directions."""

from __future__ import annotations

from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from gradspace.checks import (
    Ids,
    check_count,
    check_embeddings,
    check_finite,
    check_ids,
    check_scores,
    check_tensor,
)
from gradspace.execution.batch_pairs import NO_PAIR
from gradspace.execution.block import Executor
from gradspace.execution.choice import Execution, choose_executor
from gradspace.execution.distributed import Items, Processes
from gradspace.execution.scaled import both_ways
from gradspace.loss.memory import Memory
from gradspace.loss.mined import MinedColumns, MinedScores, Offline
from gradspace.objectives import Objective, as_objective
from gradspace.objectives.contract import Reduction
from gradspace.objectives.statistics import OfflineScores
from gradspace.scores.positives import (
    Positives,
    match_ids,
    match_nothing,
    match_positions,
    stable_ids,
)
from gradspace.scores.tiles import as_computed

Choice = TypeVar("Choice", bound=str)


class RetrievalLoss(nn.Module):
    """Both directions of an objective over image and text embeddings, as one number.

    Inputs: `images` [n, d] and `texts` [m, d]; `image_ids` and `text_ids` say what belongs together
    (equal ids). Without ids, image i belongs to text i.

    `offline` brings negatives that were mined for every pair (image i, text i): terms of an
    objective that has such, further candidates of every query to any other.

    Under torch.distributed every process passes its own images and texts, few, many or none: the
    batch is that of all processes, the value is the same in each, and the gradient is such that the
    mean over the processes, which DistributedDataParallel takes, is that of one process with the
    whole batch.

    Args:
        objective: an objective or its name.
        reduction: "sum" over the queries of both directions, or "mean": the average of the two
            directions' means over their queries. By default as published for the objective. Queries
            without a positive are not counted.
        normalize: scale every embedding to length 1 first.
        positives: "ids", or "position": image i belongs to text i whatever the ids say, so that
            other captions of the same image are negatives, as in most published code.
        memory: how many past images and texts to keep as further negatives.
        execution: "dense" builds the score matrix, "streamed" never does, "triton" fuses the
            product with what is made of it on a CUDA device; "auto" takes what is fastest.
        tile: side of the tiles of the streamed execution; smaller ones need less memory.
        checks: look for NaN in every batch, which waits for the GPU to compute it. Shapes and ids
            are checked either way.

    Example:
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
        normalize: bool = False,
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
        self.positives = _one_of("positives", positives, "ids", "position")
        self.memory = Memory(memory) if memory else None
        self.execution = _one_of("execution", execution, "auto", "dense", "streamed", "triton")
        self.tile = tile
        self.checks = checks
        if tile is not None:
            check_count("tile", tile)
        if memory and execution == "dense":
            raise ValueError('a memory needs another execution than "dense"; leave it at "auto"')

    def forward(
        self,
        images: Tensor,
        texts: Tensor,
        image_ids: Ids | None = None,
        text_ids: Ids | None = None,
        offline: Offline | None = None,
    ) -> Tensor:
        processes = Processes.current()
        if processes.number == 1:
            self._check(images, texts, image_ids, text_ids, offline)
        else:
            self._check_everywhere(processes, images, texts, image_ids, text_ids, offline)
        with torch.autocast(images.device.type, enabled=False):
            if self.normalize:
                images, texts = _unit(images), _unit(texts)
                offline = offline and offline.each(_unit)
            as_terms = offline.scores(images, texts) if offline and self._has_terms else None
            alone = processes.number == 1 and self.memory is None and (not offline or as_terms)
            executor = choose_executor(self.execution, self.tile, images, texts, alone=bool(alone))
            if executor is None:
                return self._dense(images, texts, image_ids, text_ids, as_terms)
            by_position = image_ids is None or text_ids is None or self.positives == "position"
            ids = self._integer_ids(images, texts, image_ids, text_ids, processes)
            sides = Items(images, ids[0]), Items(texts, ids[1])
            extra = offline.items(by_position) if offline and not as_terms else None
            scaled = self._scaled
            if torch.compiler.is_compiling():  # tiles are no graph, and have nothing to gain by it
                scaled = torch.compiler.disable(scaled)  # type: ignore[no-untyped-call]
            return scaled(*sides, executor, processes, by_position, as_terms, extra)

    def of_scores(
        self,
        scores: Tensor,
        image_ids: Ids | None = None,
        text_ids: Ids | None = None,
        offline: MinedScores | None = None,
    ) -> Tensor:
        """The same from `scores[image, text]`, whoever computed them, in one process."""
        check_scores(scores)
        if self.checks and not torch.compiler.is_compiling():
            check_finite("scores", scores)
        self._check_pairs(scores.shape[0], scores.shape[1], image_ids, text_ids)
        if self.normalize or self.memory is not None:
            raise ValueError("scores have no embeddings to normalize or to keep in a memory")
        with torch.autocast(scores.device.type, enabled=False):
            return self._of_matrix(as_computed(scores), image_ids, text_ids, offline)

    @property
    def _has_terms(self) -> bool:
        return self.objective.uses_offline

    def extra_repr(self) -> str:
        return f"{self.objective}, reduction={self.reduction!r}, normalize={self.normalize}"

    # --- executions -----------------------------------------------------------------------------

    def _dense(
        self,
        images: Tensor,
        texts: Tensor,
        image_ids: Ids | None,
        text_ids: Ids | None,
        offline: tuple[OfflineScores, OfflineScores] | None,
    ) -> Tensor:
        """With the whole score matrix in memory."""
        scores = as_computed(images) @ as_computed(texts).t()
        return self._of_matrix(scores, image_ids, text_ids, offline)

    def _of_matrix(
        self,
        scores: Tensor,
        image_ids: Ids | None,
        text_ids: Ids | None,
        offline: MinedScores | None,
    ) -> Tensor:
        image_to_text, text_to_image = self._match(scores, image_ids, text_ids)
        rows, columns = scores, scores.t()
        of_images, of_texts = None, None
        if isinstance(offline, MinedColumns):
            rows = torch.cat([rows, as_computed(offline.of_images)], 1)
            columns = torch.cat([columns, as_computed(offline.of_texts)], 1)
            own = self._match_mined(scores, image_ids, text_ids, offline)
            image_to_text, text_to_image = (
                known.with_more(more)
                for known, more in zip((image_to_text, text_to_image), own, strict=True)
            )
        elif offline is not None:
            of_images, of_texts = offline
        by_image = self.objective(rows, image_to_text, of_images)
        by_text = self.objective(columns, text_to_image, of_texts)
        return self._reduce(
            (by_image, image_to_text.any_valid.sum()), (by_text, text_to_image.any_valid.sum())
        )

    def _match(
        self, scores: Tensor, image_ids: Ids | None, text_ids: Ids | None
    ) -> tuple[Positives, Positives]:
        """The positives of the images and of the texts of a batch."""
        if image_ids is None or text_ids is None or self.positives == "position":
            by_position = match_positions(len(scores), scores.device)
            return by_position, by_position
        image_to_text = match_ids(image_ids, text_ids)
        if not torch.compiler.is_compiling() and not image_to_text.valid.any():
            raise ValueError(NO_PAIR)
        return image_to_text.to(scores.device), image_to_text.transpose().to(scores.device)

    def _match_mined(
        self, scores: Tensor, image_ids: Ids | None, text_ids: Ids | None, mined: MinedColumns
    ) -> tuple[Positives, Positives]:
        """What of the mined texts and images belongs to an image, and to a text, of the batch."""
        if image_ids is None or text_ids is None or self.positives == "position":
            return match_nothing(mined.of_images), match_nothing(mined.of_texts)
        return (
            match_ids(image_ids, mined.text_ids).to(scores.device),
            match_ids(text_ids, mined.image_ids).to(scores.device),
        )

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
        """Without the score matrix, with the other processes, the memory and mined negatives.

        The total over the processes is what each returns. Backward sums the gradients that all of
        them start with, and so multiplies by their number, which the mean over them takes back.
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
        """From the values of each side and the number of its queries that have a positive."""
        (image_values, num_images), (text_values, num_texts) = by_image, by_text
        if self.reduction == "sum":
            return image_values.sum() + text_values.sum()
        image_mean = image_values.sum() / num_images.clamp(min=1)
        return (image_mean + text_values.sum() / num_texts.clamp(min=1)) / 2

    def _integer_ids(
        self,
        images: Tensor,
        texts: Tensor,
        image_ids: Ids | None,
        text_ids: Ids | None,
        processes: Processes,
    ) -> tuple[Tensor, Tensor]:
        """Ids that mean the same in every process; by position, different ones in each."""
        if image_ids is None or text_ids is None or self.positives == "position":
            position = torch.arange(len(images), device=images.device) + (processes.rank << 40)
            return position, position
        return stable_ids(image_ids, images.device), stable_ids(text_ids, texts.device)

    # --- checks ---------------------------------------------------------------------------------

    def _check(
        self,
        images: Tensor,
        texts: Tensor,
        image_ids: Ids | None,
        text_ids: Ids | None,
        offline: Offline | None,
        may_be_empty: bool = False,
    ) -> None:
        check_embeddings(images, texts, may_be_empty=may_be_empty, values=self.checks)
        if offline is not None:
            offline.check(images, texts, values=self.checks)
        self._check_pairs(len(images), len(texts), image_ids, text_ids)

    def _check_pairs(
        self, num_images: int, num_texts: int, image_ids: Ids | None, text_ids: Ids | None
    ) -> None:
        if (image_ids is None) != (text_ids is None):
            missing = "image_ids" if image_ids is None else "text_ids"
            raise ValueError(f"{missing} is missing: give the ids of both sides, or of none")
        if image_ids is None or text_ids is None or self.positives == "position":
            if num_images != num_texts:
                raise ValueError(
                    f"pairs by position need as many images as texts, got {num_images} images and "
                    f"{num_texts} texts; pass image_ids and text_ids"
                )
            return
        check_ids("image_ids", image_ids, num_images, "images")
        check_ids("text_ids", text_ids, num_texts, "texts")

    def _check_everywhere(
        self,
        processes: Processes,
        images: Tensor,
        texts: Tensor,
        image_ids: Ids | None,
        text_ids: Ids | None,
        offline: Offline | None,
    ) -> None:
        """What is wrong in one process is said by all of them, instead of waiting for it."""
        check_tensor("images", images)  # without one there is no device to tell the others by
        problem = ""
        try:
            self._check(images, texts, image_ids, text_ids, offline, may_be_empty=True)
        except ValueError as error:
            problem = str(error)
        width = images.shape[1] if images.dim() == 2 else None
        kind = f"{' '.join(str(self).split())}, {images.dtype}, width {width}"
        kind += ", offline negatives" if offline else ""
        processes.agree(kind, problem, images.device)


def _unit(embeddings: Tensor) -> Tensor:
    return nn.functional.normalize(as_computed(embeddings), dim=1)


def _one_of(name: str, value: Choice, *choices: str) -> Choice:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return value
