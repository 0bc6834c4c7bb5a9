"""Stages and learning rates: a pure function of the recipe, the epoch and the step.

It has no state, so that a resumed run has the learning rates of an uninterrupted one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradspace.runs.recipe import Recipe
from gradspace.runs.recipe_tables import TrainingRecipe


@dataclass(frozen=True)
class Stage:
    """Consecutive epochs: first with the backbone frozen, then (`[finetune]`) with it."""

    first_epoch: int
    epochs: int
    learning_rate: float
    decay_epochs: tuple[int, ...]
    train_backbone: bool

    @property
    def end(self) -> int:
        return self.first_epoch + self.epochs


def stages(recipe: Recipe) -> tuple[Stage, ...]:
    training, finetune = recipe.training, recipe.finetune
    first = Stage(0, training.epochs, training.learning_rate, training.decay_epochs, False)
    if finetune is None:
        return (first,)
    second = Stage(
        training.epochs, finetune.epochs, finetune.learning_rate, finetune.decay_epochs, True
    )
    return first, second


def stage_of(recipe: Recipe, epoch: int) -> Stage:
    """Return the stage of an epoch (counted from 0)."""
    return next(stage for stage in stages(recipe) if epoch < stage.end)


def begins_fine_tuning(recipe: Recipe, epoch: int) -> bool:
    """Whether an epoch is the first with the backbone, after others without it."""
    return any(stage.first_epoch == epoch for stage in stages(recipe)[1:])


def learning_rate(recipe: Recipe, epoch: int, step: int, steps_per_epoch: int) -> float:
    """Compute the rate of step `step` (counted from 0 over the whole run) in epoch `epoch`.

    It rises linearly: at the start of every stage if the warm-up is a share, at the start of the
    run if it is a number of steps. "linear" then falls linearly to 0 at the end of the stage,
    "cosine" along half a wave; "steps" is constant between `decay_epochs`.
    """
    stage, training = stage_of(recipe, epoch), recipe.training
    rising = min((step + 1) / training.warm_up_steps, 1) if training.warm_up_steps else 1
    done = step - stage.first_epoch * steps_per_epoch
    total = stage.epochs * steps_per_epoch
    warm_up = training.warm_up_share * total
    if warm_up:
        rising = min((done + 1) / warm_up, 1)
    fallen = max(done - warm_up, 0) / max(total - warm_up, 1)
    return stage.learning_rate * rising * _left(training, stage, epoch, min(fallen, 1))


def _left(training: TrainingRecipe, stage: Stage, epoch: int, fallen: float) -> float:
    """Compute the decay factor when a share `fallen` of the way from the warm-up is done."""
    if training.schedule == "linear":
        return 1 - fallen
    if training.schedule == "cosine":
        return (1 + math.cos(math.pi * fallen)) / 2
    decays = sum(epoch - stage.first_epoch >= after for after in stage.decay_epochs)
    return training.decay**decays
