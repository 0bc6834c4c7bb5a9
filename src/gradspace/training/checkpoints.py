"""Checkpoints of a run: the latest one, for resuming, and the best weights so far."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict

import torch
from torch import Tensor

from gradspace import processes
from gradspace.metrics import RetrievalReport
from gradspace.runs.checkpoint import (
    optimizer_tensors,
    random_states,
    restore_optimizer,
    restore_random_states,
    with_prefix,
    without_prefix,
)
from gradspace.runs.folder import Run
from gradspace.tensor_files import load_tensors, save_tensors
from gradspace.training.parts import MovingParts
from gradspace.training.sharing import load_weights, shared_state, take_from_first, whole
from gradspace.training.state import TrainingState


class Checkpoints:
    """Saves and restores the moving parts of a training; only the first process writes."""

    def __init__(self, run: Run, parts: MovingParts) -> None:
        self.run = run
        self.parts = parts
        self.saved_at = time.monotonic()

    @property
    def are_due(self) -> bool:
        """Whether it is time to save again, by the clock of the first process, for all."""
        waited = time.monotonic() - self.saved_at
        due = processes.is_first() and waited >= self.parts.recipe.training.save_every
        return processes.any_of(due)

    def save(self) -> None:
        """Write everything needed to resume training; random states have a row per process."""
        parts = self.parts
        states = random_states(parts.system.device).items()
        random = {name: processes.gather_rows(state[None]) for name, state in states}
        model = whole(parts.system.model.state_dict())
        optimizer = whole(optimizer_tensors(parts.optimizer))
        if not processes.is_first():
            return
        tensors = {
            **with_prefix("model", model),
            **with_prefix("optimizer", optimizer),
            **with_prefix("loss", parts.loss.state_dict()),
            **with_prefix("random", random),
        }
        if parts.average is not None:
            tensors |= with_prefix("average", parts.average.state_dict())
        record = {
            "progress": asdict(parts.state),
            "scaler": parts.scaler.state_dict(),
            "times_alike": parts.collapse.times_alike,
            "feature_shape": parts.system.feature_shape,
            "feature_regions": parts.system.feature_regions,
        }
        save_tensors(self.run.last, tensors, record)
        self.saved_at = time.monotonic()

    def restore(self) -> None:
        """Restore everything from the checkpoint."""
        parts = self.parts
        tensors, record = load_tensors(self.run.last)
        parts.state = TrainingState(**record["progress"])
        if not tensors:
            return  # a finished run of a comparison
        load_weights(parts.system.model, without_prefix("model", tensors))
        if parts.average is not None:
            parts.average.load_state_dict(without_prefix("average", tensors))
        state = parts.state
        parts.renew(state.epoch if state.batch else max(state.epoch - 1, 0))
        moments = shared_state(parts.optimizer, without_prefix("optimizer", tensors))
        restore_optimizer(parts.optimizer, moments)
        parts.loss.load_state_dict(without_prefix("loss", tensors))
        _restore_random(without_prefix("random", tensors), parts.system.device)
        parts.scaler.load_state_dict(record["scaler"])
        parts.collapse.times_alike = record["times_alike"]
        if processes.is_first():
            self.run.forget_after(state.step, state.epoch)

    def save_best(self, report: RetrievalReport | None) -> None:
        """Save the current weights as the run's best, and delete results of earlier ones."""
        parts = self.parts
        weights = whole(parts.evaluated.model.state_dict())
        if not processes.is_first():
            return
        record = {
            "step": parts.state.step,
            "epoch": parts.state.epoch,
            "dev": report.to_dict() if report else None,
            "feature_shape": parts.system.feature_shape,
            "feature_regions": parts.system.feature_regions,
        }
        self.run.forget_results()
        save_tensors(self.run.best, with_prefix("model", weights), record)

    def take_best(self) -> None:
        """Load the best weights so far into the model, if they were chosen on dev."""
        parts = self.parts
        if parts.state.best_rsum < 0:
            return
        models = [parts.system.model, *([parts.average.module] if parts.average else [])]
        tensors = load_tensors(self.run.best)[0] if processes.is_first() else {}
        for model in models:
            take_from_first(model, without_prefix("model", tensors))


def _restore_random(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Restore the state of this process; additional processes start with new ones."""
    rank = processes.rank()
    if rank < len(states["cpu"]):
        restore_random_states({name: rows[rank] for name, rows in states.items()}, device)
