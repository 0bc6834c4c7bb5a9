"""Parts of a training step: the whole step, its model alone, and its objective alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, islice

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from benchmarks.case import Measurement
from benchmarks.gpu_timing import Step
from benchmarks.tables import milliseconds
from gradspace.data.batches import Batch
from gradspace.models import PairScorer
from gradspace.training.caching import Embedded
from gradspace.training.loop import Trainer

PARTS = ("step", "model", "objective")
BATCHES = 20
"""Batches that the model alone cycles through; every caption length has its own plan on a GPU."""
COLUMNS = ("step ms", "model ms", "objective ms", "objective / step", "neither / step")


def prepare_part(
    part: str, trainer: Trainer, batches: Iterator[Batch], warm_up: int = BATCHES
) -> Step:
    """Make a part ready to be timed, after `warm_up` steps."""
    if part == "objective":
        return _objective(trainer, next(batches))
    step = _whole(trainer, batches) if part == "step" else _model(trainer, batches)
    for _ in range(warm_up):
        step()
    return step


def _whole(trainer: Trainer, batches: Iterator[Batch]) -> Step:
    """Make a whole step as in the training loop, which reads losses and COCOS when due."""

    def step() -> tuple[Tensor, ...]:
        trainer.train_on(next(batches))
        if trainer.readings.are_due:
            list(trainer.readings.read())
        return ()

    return step


def _model(trainer: Trainer, batches: Iterator[Batch]) -> Step:
    """Make a step of the model: forward, backward from a constant gradient, clipping, update."""
    model, optimizer = trainer.system.model, trainer.parts.optimizer
    for group in optimizer.param_groups:
        group["lr"] = 0.0  # takes as long, without changing anything
    ready = [_on_device(batch, trainer) for batch in islice(batches, BATCHES)]
    first, _ = _outputs(trainer, ready[0])
    constant = [torch.randn_like(output) for output in first]
    again_and_again = cycle(ready)

    def step() -> tuple[Tensor, ...]:
        outputs, extra = _outputs(trainer, next(again_and_again))
        roots = outputs if extra is None else [*outputs, extra]
        gradients = constant if extra is None else [*constant, None]
        torch.autograd.backward(roots, gradients)
        clip_grad_norm_(model.parameters(), trainer.recipe.training.clip or torch.inf)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return ()

    return step


def _objective(trainer: Trainer, batch: Batch) -> Step:
    """Make a step of the objective: forward, and backward to the embeddings or pair scores."""
    outputs, _ = _outputs(trainer, _on_device(batch, trainer))
    leaves = [output.detach().requires_grad_() for output in outputs]

    def forward_and_backward() -> tuple[Tensor, ...]:
        if len(leaves) == 1:
            value = trainer.parts.loss.of_scores(leaves[0], batch.image_ids, batch.text_ids)
        else:
            value = trainer.batch_loss.value(batch, *leaves)
        return value.detach(), *torch.autograd.grad(value, leaves)

    return forward_and_backward


def _outputs(trainer: Trainer, batch: Batch) -> tuple[list[Tensor], Tensor | None]:
    """Compute the objective's inputs, and the model's own addition to the loss."""
    model = trainer.system.model
    found: Embedded = trainer.batch_loss.embed(batch, len(batch.text_ids))
    if not isinstance(model, PairScorer):
        return [found.images, found.texts], found.extra
    with trainer.system.autocast(trainer.recipe.training.precision):
        return [model.score(found.images, found.texts, batch.lengths)], found.extra


def _on_device(batch: Batch, trainer: Trainer) -> Batch:
    """Move images and tokens to the device; lengths and ids stay where the loop has them."""
    device = trainer.system.device
    return replace(batch, images=batch.images.to(device), tokens=batch.tokens.to(device))


# --- the row of a table -------------------------------------------------------------------------


def row(measured: Sequence[Measurement]) -> list[str]:
    """Format the columns from a step and its parts."""
    step, model, objective = (m.seconds for m in measured)
    shares = ["-", "-"]
    if step and objective:
        shares[0] = percent(objective / step)
    if step and model and objective:
        shares[1] = percent((step - model - objective) / step)
    return [*(milliseconds(m) for m in measured), *shares]


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"
