"""The training loop: from a recipe to a trained run, from wherever it stopped."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradspace import processes
from gradspace.data.batches import Batch
from gradspace.data.dataset import Dataset
from gradspace.data.loader import Loader
from gradspace.data.shards.stream import StreamBatches
from gradspace.files import only_writer
from gradspace.metrics import RetrievalReport
from gradspace.runs.card import write_card
from gradspace.runs.evaluate import report_on
from gradspace.runs.folder import Run
from gradspace.runs.recipe import Recipe
from gradspace.runs.system import System
from gradspace.training.batch_loss import BatchLoss
from gradspace.training.caching import BatchOutcome, backward, cached_backward
from gradspace.training.checkpoints import Checkpoints
from gradspace.training.health import TrainingError, check_gradient, not_finite
from gradspace.training.log import TrainingLog, open_log
from gradspace.training.monitor import Monitor
from gradspace.training.pair_batches import check_processes
from gradspace.training.parts import MovingParts
from gradspace.training.readings import Readings
from gradspace.training.schedule import begins_fine_tuning, learning_rate, stages
from gradspace.training.sharing import average_gradients, clip_gradients, gathered, in_step
from gradspace.training.source import BatchSource
from gradspace.training.state import TrainingState
from gradspace.training.stopping import Stopping, stop_signals
from gradspace.training.trackers import Track

CHECK_EVERY = 10
"""Steps between two checks for collapsed embeddings."""


def train_run(
    recipe: Recipe,
    dataset: Dataset,
    system: System,
    run: Run,
    monitor: Monitor,
    track: Track | None = None,
) -> TrainingState:
    """Train to the end of the recipe, or until asked to stop; resumes from the checkpoint.

    `track` gets every measurement, like the trackers of the recipe.

    All processes of a group (`processes.group`) call this, each with its own part of every batch:
    their weights stay equal, and the first one writes the run.
    """
    check_processes(system.model)
    _draw_differently(recipe.seed)
    with (
        only_writer(run.folder) if processes.is_first() else nullcontext(),
        open_log(run, recipe.training.trackers, track) as log,
    ):
        state = _train(Trainer(recipe, dataset, system, run, monitor, log))
        if processes.is_first() and run.best.exists():
            write_card(run, run.folder)
        return state


def _train(trainer: Trainer) -> TrainingState:
    with stop_signals() as stopping:
        if trainer.checkpoints.run.last.exists():
            trainer.checkpoints.restore()
        else:
            trainer.begin()
        return trainer.run_epochs(stopping)


class Trainer:
    """The loop over epochs and batches, with the moving parts, monitor and log of a training."""

    def __init__(
        self,
        recipe: Recipe,
        dataset: Dataset,
        system: System,
        run: Run,
        monitor: Monitor,
        log: TrainingLog | None = None,
    ) -> None:
        self.recipe = recipe
        self.dataset = dataset
        self.system = system
        self.run = run
        self.monitor = monitor
        self.parts = MovingParts.new(recipe, system)
        self.checkpoints = Checkpoints(run, self.parts)
        self.source = BatchSource(recipe, dataset, system, run)
        self.readings = Readings(system.device)
        self.log = log or TrainingLog(run)
        self.steps_per_epoch = 0

    @property
    def state(self) -> TrainingState:
        return self.parts.state

    def _advance(self, **changes: Any) -> None:
        self.parts.state = replace(self.parts.state, **changes)

    # --- epochs ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start at the first batch; weights of another run are evaluated on dev before."""
        self.log.start()
        if self.recipe.init is not None and (report := self._evaluate()) is not None:
            self.log.write(kind="start", step=0, dev=report.to_dict())
            self.monitor.started(report)

    def run_epochs(self, stopping: Stopping) -> TrainingState:
        end = stages(self.recipe)[-1].end
        self.source.go_on(self.state)
        while self.state.epoch < end:
            if not self._run_epoch(stopping):
                self._save()
                return self.state
            self._finish_epoch()
            fine_tunes = begins_fine_tuning(self.recipe, self.state.epoch)
            if fine_tunes:
                self.checkpoints.take_best()
            # Saved at once, because the best weights may change within the next epoch.
            if fine_tunes or self.state.epoch == end or self.checkpoints.are_due:
                self._save()
        return self.state

    def _run_epoch(self, stopping: Stopping) -> bool:
        """Train on the remaining batches of the epoch; return False when asked to stop."""
        recipe, epoch = self.recipe.training, self.state.epoch
        if self.state.batch == 0:
            self.parts.start_epoch(epoch)
            self.source.mine_anew(epoch, self.parts.evaluated)
        batches = self.batches()
        num_batches = self.state.batch + len(batches)
        self.steps_per_epoch = num_batches // recipe.accumulate
        self.monitor.start_epoch(epoch, num_batches, self.state.batch)
        self.system.model.train()
        for batch in batches:
            self.train_on(batch)
            done = self.state.batch + 1
            self._advance(batch=done)
            if isinstance(batches, StreamBatches):
                self._name_left_out(batches.left_out)
            if self.readings.are_due:
                self._read()
            if done % recipe.accumulate == 0:
                if self.checkpoints.are_due:
                    self._save()
                if processes.any_of(stopping.requested):
                    return False
        return True

    def _name_left_out(self, samples: list[str]) -> None:
        """Log the unusable samples of the latest batch, with the number of its step."""
        found = processes.gather_texts(samples)
        if found:
            done = self.state.batch % self.recipe.training.accumulate == 0
            step, epoch = self.state.step + (not done), self.state.epoch
            self.log.write(kind="left out", step=step, epoch=epoch, samples=found)
            self.monitor.left_out(found)

    def _read(self) -> None:
        """Read losses and gradients of the latest batches; one that is not finite ends the run."""
        for step, loss, norm in self.readings.read():
            if not isfinite(norm) and not self.parts.scaler.is_enabled():
                raise not_finite(step, loss)
            self._advance(loss_sum=self.state.loss_sum + loss)
            self.monitor.batch_done(self.recipe.training.batch_size, loss)

    def _finish_epoch(self) -> None:
        """Evaluate on dev, keep the weights if they are the best so far, and move on."""
        self._read()
        done = self.state
        self.parts.optimizer.zero_grad(set_to_none=True)  # drop batches that do not fill a step
        report = self._evaluate()
        values: dict[str, Any] = {"loss": done.loss_sum / max(done.batch, 1)}
        if report is not None:
            values["dev"] = report.to_dict()
            if report.rsum > done.best_rsum:
                self._advance(best_rsum=report.rsum)
                self.checkpoints.save_best(report)
        elif done.epoch + 1 == stages(self.recipe)[-1].end:
            self.checkpoints.save_best(None)
        self.log.write(kind="epoch", step=done.step, epoch=done.epoch, **values)
        self.monitor.epoch_done(done.epoch, values["loss"], report)
        self._advance(epoch=done.epoch + 1, batch=0, loss_sum=0.0)

    def batches(self) -> Loader[Batch] | StreamBatches:
        """Make the remaining batches of the epoch."""
        return self.source.batches(self.state.epoch, self.state.batch)

    # --- one batch ------------------------------------------------------------------------------

    @property
    def batch_loss(self) -> BatchLoss:
        precision = self.recipe.training.precision
        extended = self.source.mined is not None
        ids = self.source.pair_ids
        return BatchLoss(self.system, precision, self.parts.loss, ids, extended)

    def train_on(self, batch: Batch) -> Tensor:
        """Train on a batch, and return its loss, which the device may still be computing."""
        training, step = self.recipe.training, self.state.step
        outcome = self._backward(batch)
        value = outcome.loss
        if outcome.extra is not None:
            processes.average([outcome.extra])
            value = value + outcome.extra
        if step % CHECK_EVERY == 0:
            images, texts = map(processes.gather_rows, self.batch_loss.vectors(outcome, batch))
            self.parts.collapse.check(images, texts, step)
        norm = None
        if (self.state.batch + 1) % training.accumulate == 0:
            norm = self._update(value)
            if step % training.track_every == 0:
                self._track(outcome, batch, value, norm)
        self.readings.add(step, value, norm)
        return value

    def _backward(self, batch: Batch) -> BatchOutcome:
        """Add the gradient of a batch to the parameters', in parts if the recipe asks for it."""
        chunk = self.recipe.training.chunk
        num_texts = processes.total(len(batch.text_ids))
        embed = partial(self.batch_loss.embed, num_texts=num_texts)
        loss = partial(self._loss_of, batch)
        parts = [batch] if chunk is None else batch.in_parts(chunk)
        if self.recipe.training.shard_towers:
            parts = in_step(parts)
        if len(parts) == 1:
            return backward(batch, embed, loss, self._scale)
        system = self.system
        return cached_backward(parts, embed, loss, self._scale, system.model, system.device)

    def _loss_of(self, batch: Batch, images: Tensor, texts: Tensor) -> Tensor:
        try:
            return self.batch_loss.value(batch, images, texts)
        except ValueError as error:
            raise TrainingError(
                f"{error} at step {self.state.step}: the weights have overflowed; "
                "lower training.learning_rate"
            ) from error

    def _scale(self, value: Tensor) -> Tensor:
        """Scale a loss for batches that share a step, and for the small numbers of float16."""
        scaled: Tensor = self.parts.scaler.scale(value / self.recipe.training.accumulate)
        return scaled

    def _update(self, loss: Tensor) -> Tensor:
        """Take one step of the optimiser; return the norm of the gradient before clipping."""
        training, model = self.recipe.training, self.system.model
        rate = self._learning_rate(self.state.step)
        for group in self.parts.optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        average_gradients(model.parameters())
        self.parts.scaler.unscale_(self.parts.optimizer)
        norm = clip_gradients(model.parameters(), training.clip or torch.inf)
        if self.system.device.type == "cpu" and not self.parts.scaler.is_enabled():
            check_gradient(model, norm, loss, self.state.step)
        self.parts.scaler.step(self.parts.optimizer)
        self.parts.scaler.update()
        self.parts.optimizer.zero_grad(set_to_none=True)
        if self.parts.average is not None:
            self.parts.average.update_parameters(model)
        self._advance(step=self.state.step + 1)
        return norm

    def _learning_rate(self, step: int) -> float:
        return learning_rate(self.recipe, self.state.epoch, step, self.steps_per_epoch)

    def _track(self, outcome: BatchOutcome, batch: Batch, value: Tensor, norm: Tensor) -> None:
        """Log what contributes to the gradient in both directions, and its norm."""
        found = self.batch_loss.contributions(outcome, batch)
        self.log.write(
            kind="step",
            step=self.state.step,
            epoch=self.state.epoch,
            loss=float(value),
            gradient=float(norm),
            learning_rate=self._learning_rate(self.state.step - 1),
            **found,
        )

    def _evaluate(self) -> RetrievalReport | None:
        """Evaluate on dev, if the data has it."""
        dev = self.dataset.splits.get("dev")
        if dev is None:
            return None
        system = self.parts.evaluated
        # BatchNorm statistics differ between processes: those of the first are saved.
        processes.copy_from_first(system.model.buffers())
        with gathered(system.model):
            return report_on(system, dev)

    def _save(self) -> None:
        self._read()
        self._advance(bookmark=self.source.bookmark(self.state))
        self.checkpoints.save()


def _draw_differently(seed: int) -> None:
    """Seed dropout differently in every process, after making equal initial weights."""
    if processes.rank() > 0:
        words = np.random.SeedSequence([seed, processes.rank()]).generate_state(1)
        torch.manual_seed(int(words[0]))
