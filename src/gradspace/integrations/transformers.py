"""A callback that records COCOS for transformers' `Trainer` and those built on it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from gradspace import processes
from gradspace.analysis.cocos import Cocos
from gradspace.loss.retrieval_loss import RetrievalLoss
from gradspace.scores.positives import stable_ids
from gradspace.training.tracking import contributions


class CocosCallback(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Counts what contributes to the gradient in the first step and every n-th step after it.

    It reads the input of the `RetrievalLoss` in the trainer's loss or model, without affecting the
    training. A record is a line of `path`, with the counts of both directions and some triplets, as
    in the metrics.jsonl of a run. The counts are also in the trainer's log, as
    `cocos/image_to_text/per_query` and so on. Anchors and the like count as images.

    Args:
        trainer: the trainer that the callback is added to.
        path: file to append JSON lines to.
        every: number of steps between records.
    """

    def __init__(self, trainer: Any, path: str | Path, every: int = 100) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        self.losses = list(_retrieval_losses(trainer))
        if not self.losses:
            raise ValueError(
                "there is no RetrievalLoss in this trainer's loss or model: COCOS can only be "
                "counted for an objective of gradspace"
            )
        self.trainer = trainer
        self.path = Path(path)
        self.every = every
        self._record: dict[str, Any] | None = None
        self._hooks: list[Any] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step % self.every == 0:
            self._hooks = [
                loss.register_forward_hook(self._look, with_kwargs=True) for loss in self.losses
            ]

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        while self._hooks:
            self._hooks.pop().remove()
        record, self._record = self._record, None
        if record is None:
            return
        if state.is_world_process_zero:
            line = {"kind": "step", "step": state.global_step, "epoch": state.epoch, **record}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        self.trainer.log(dict(_numbers(record)))

    @torch.no_grad()
    def _look(
        self, loss: RetrievalLoss, given: tuple[Any, ...], named: dict[str, Any], value: Tensor
    ) -> None:
        """Record the counts of a batch; of several batches in a step, the last one remains."""
        parts = [processes.gather_rows(part) for part in _batch(loss, *given, **named)]
        self._record = {
            "loss": float(value),
            **contributions(loss.objective, *parts),
        }


def _retrieval_losses(trainer: Any) -> Iterator[RetrievalLoss]:
    given = getattr(trainer, "loss", None)
    for module in (*(given.values() if isinstance(given, dict) else [given]), trainer.model):
        if isinstance(module, nn.Module):
            yield from (part for part in module.modules() if isinstance(part, RetrievalLoss))


def _batch(
    loss: RetrievalLoss,
    images: Tensor,
    texts: Tensor,
    image_ids: Any = None,
    text_ids: Any = None,
    offline: Any = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Prepare embeddings and ids as the loss does; mined negatives are not counted."""
    if loss.normalize:
        images, texts = (nn.functional.normalize(part.float(), dim=1) for part in (images, texts))
    if image_ids is None or text_ids is None or loss.positives == "position":
        position = torch.arange(len(images), device=images.device) + (processes.rank() << 40)
        return images, texts, position, position
    device = images.device
    return images, texts, stable_ids(image_ids, device), stable_ids(text_ids, device)


def _numbers(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for way in ("image_to_text", "text_to_image"):
        for name in Cocos.__dataclass_fields__:
            yield f"cocos/{way}/{name}", record[way][name]
