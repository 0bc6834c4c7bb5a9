"""Moving parts of a training: weights, optimiser, loss, average weights and progress."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from gradspace.loss import RetrievalLoss
from gradspace.models import RetrievalModel
from gradspace.runs.recipe import Recipe, build_objective
from gradspace.runs.system import System
from gradspace.training.health import CollapseWatch
from gradspace.training.schedule import stage_of
from gradspace.training.sharing import share_towers
from gradspace.training.state import TrainingState
from gradspace.training.towers import prepare_towers

OPTIMIZERS: dict[str, type[Optimizer]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@dataclass
class MovingParts:
    """Everything that a step changes and a checkpoint contains."""

    recipe: Recipe
    system: System
    average: AveragedModel | None
    optimizer: Optimizer
    loss: RetrievalLoss
    scaler: torch.amp.GradScaler
    collapse: CollapseWatch
    state: TrainingState

    @staticmethod
    def new(recipe: Recipe, system: System) -> MovingParts:
        prepare_towers(system.model, recipe.training, system.device)
        half = recipe.training.precision == "float16"
        return MovingParts(
            recipe=recipe,
            system=system,
            average=_average_of(system.model, recipe.training.ema),
            optimizer=_make_optimizer(recipe, system, epoch=0),
            loss=_make_loss(recipe, system.device, epoch=0),
            scaler=torch.amp.GradScaler(system.device.type, enabled=half),
            collapse=CollapseWatch(),
            state=TrainingState(),
        )

    @property
    def evaluated(self) -> System:
        """The system with its average weights, if the run keeps them."""
        if self.average is None:
            return self.system
        return replace(self.system, model=cast(RetrievalModel, self.average.module))

    def start_epoch(self, epoch: int) -> None:
        """Renew what an epoch resets: the optimiser of a stage, the loss after its warm-up."""
        if stage_of(self.recipe, epoch).first_epoch == epoch > 0:
            self.optimizer = _make_optimizer(self.recipe, self.system, epoch)
        if epoch == 1 and self.recipe.objective.warm_up:
            self.loss = _make_loss(self.recipe, self.system.device, epoch)

    def renew(self, epoch: int) -> None:
        """Make the optimiser and the loss of an epoch, into which a checkpoint can be loaded."""
        self.optimizer = _make_optimizer(self.recipe, self.system, epoch)
        self.loss = _make_loss(self.recipe, self.system.device, epoch)


def _make_loss(recipe: Recipe, device: torch.device, epoch: int) -> RetrievalLoss:
    loss = RetrievalLoss(
        build_objective(recipe, warm_up=epoch == 0),
        normalize=False,  # models give unit length, or a learned scale
        positives="position" if recipe.objective.positives == "position" else "ids",
        memory=recipe.objective.memory,
        checks=device.type == "cpu",  # on a GPU, gradients are checked later
    )
    return loss.to(device)


def _make_optimizer(recipe: Recipe, system: System, epoch: int) -> Optimizer:
    system.model.fine_tune_backbone(stage_of(recipe, epoch).train_backbone)
    if recipe.training.shard_towers:
        share_towers(system.model)
    kind: type[Optimizer] = OPTIMIZERS[recipe.training.optimizer]
    groups = system.model.parameter_groups(1.0)
    for group in groups:
        group["factor"] = group["lr"]
    settings: dict[str, Any] = {
        "lr": 1.0,
        "weight_decay": recipe.training.weight_decay,
        "fused": system.device.type == "cuda",
    }
    return kind(groups, **settings)


def _average_of(model: nn.Module, decay: float | None) -> AveragedModel | None:
    if decay is None:
        return None
    average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
    return AveragedModel(model, multi_avg_fn=average, use_buffers=True)
