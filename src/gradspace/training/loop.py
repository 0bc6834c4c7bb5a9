"""The training loop: one pass from a recipe to a run, from any point it was stopped at."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradspace import processes
from gradspace.data.batches import Batch, training_batches
from gradspace.data.captions import EncodedCaptions
from gradspace.data.dataset import Dataset
from gradspace.data.loader import Loader
from gradspace.data.order import Plan
from gradspace.files import only_writer
from gradspace.metrics import RetrievalReport
from gradspace.runs.data import recipe_ids
from gradspace.runs.evaluate import report_on
from gradspace.runs.folder import Run
from gradspace.runs.mine import mine_run
from gradspace.runs.recipe import Recipe
from gradspace.runs.system import System
from gradspace.training.batch_loss import BatchLoss
from gradspace.training.caching import BatchOutcome, backward, cached_backward
from gradspace.training.checkpoints import Checkpoints
from gradspace.training.health import TrainingError, check_gradient, not_finite
from gradspace.training.log import TrainingLog
from gradspace.training.monitor import Monitor
from gradspace.training.pair_batches import check_processes
from gradspace.training.parts import MovingParts
from gradspace.training.readings import Readings
from gradspace.training.schedule import begins_fine_tuning, learning_rate, stages
from gradspace.training.second_round import Mined, is_due, open_mined
from gradspace.training.state import TrainingState
from gradspace.training.stopping import Stopping, stop_signals

CHECK_EVERY = 10
"""Steps between two looks at whether the embeddings are all alike."""


def train_run(
    recipe: Recipe, dataset: Dataset, system: System, run: Run, monitor: Monitor
) -> TrainingState:
    """Train to the end of the recipe, or until asked to stop; goes on where the run stands.

    Of several processes (`processes.group`) all call this, each with its own part of every batch:
    their weights stay the same, and the first one writes the run.
    """
    check_processes(system.model)
    _draw_differently(recipe.seed)
    with only_writer(run.folder) if processes.is_first() else nullcontext():
        return _train(Trainer(recipe, dataset, system, run, monitor))


def _train(trainer: Trainer) -> TrainingState:
    with stop_signals() as stopping:
        if trainer.checkpoints.run.last.exists():
            trainer.checkpoints.restore()
        else:
            trainer.begin()
        return trainer.run_epochs(stopping)


class Trainer:
    """The loop over epochs and batches, with the parts that it moves and those that look on."""

    def __init__(
        self, recipe: Recipe, dataset: Dataset, system: System, run: Run, monitor: Monitor
    ) -> None:
        self.recipe = recipe
        self.dataset = dataset
        self.system = system
        self.run = run
        self.monitor = monitor
        self.parts = MovingParts.new(recipe, system)
        self.checkpoints = Checkpoints(run, self.parts)
        self.mined = self._open_mined()
        self.captions = EncodedCaptions(system.encode, dataset.splits["train"].captions)
        self.pair_ids = recipe_ids(recipe, dataset.splits["train"])
        self.readings = Readings(system.device)
        self.log = TrainingLog(run, tensorboard=recipe.training.tensorboard)
        self.steps_per_epoch = 0

    @property
    def state(self) -> TrainingState:
        return self.parts.state

    def _advance(self, **changes: Any) -> None:
        self.parts.state = replace(self.parts.state, **changes)

    # --- epochs ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """From the first batch on; with the weights of another run, dev tells whether they fit."""
        self.log.start()
        if self.recipe.init is not None and (report := self._evaluate()) is not None:
            self.log.write(kind="start", step=0, dev=report.to_dict())
            self.monitor.started(report)

    def run_epochs(self, stopping: Stopping) -> TrainingState:
        end = stages(self.recipe)[-1].end
        while self.state.epoch < end:
            if not self._run_epoch(stopping):
                self._save()
                return self.state
            self._finish_epoch()
            fine_tunes = begins_fine_tuning(self.recipe, self.state.epoch)
            if fine_tunes:
                self.checkpoints.take_best()
            # Saved at once: an epoch from now the best weights may be others.
            if fine_tunes or self.state.epoch == end or self.checkpoints.are_due:
                self._save()
        return self.state

    def _run_epoch(self, stopping: Stopping) -> bool:
        """Train on the batches that are left of the epoch; False when asked to stop."""
        recipe, epoch = self.recipe.training, self.state.epoch
        if self.state.batch == 0:
            self.parts.start_epoch(epoch)
            self._mine_anew(epoch)
        batches = self.batches()
        num_batches = self.state.batch + len(batches)
        self.steps_per_epoch = num_batches // recipe.accumulate
        self.monitor.start_epoch(epoch, num_batches, self.state.batch)
        self.system.model.train()
        for batch in batches:
            self.train_on(batch)
            done = self.state.batch + 1
            self._advance(batch=done)
            if self.readings.are_due:
                self._read()
            if done % recipe.accumulate == 0:
                if self.checkpoints.are_due:
                    self._save()
                if processes.any_of(stopping.requested):
                    return False
        return True

    def _read(self) -> None:
        """Look at what the latest batches gave; a gradient that is not finite ends the run."""
        for step, loss, norm in self.readings.read():
            if not isfinite(norm) and not self.parts.scaler.is_enabled():
                raise not_finite(step, loss)
            self._advance(loss_sum=self.state.loss_sum + loss)
            self.monitor.batch_done(self.recipe.training.batch_size, loss)

    def _open_mined(self) -> Mined | None:
        if self.recipe.offline is None:
            return None
        return open_mined(self.run, self.recipe.offline, self.dataset.splits["train"])

    def _mine_anew(self, epoch: int) -> None:
        """Replace the lists, where the recipe says so, by those of the weights of this moment.

        They are in the folder of the run before a step is made with them: what goes on from a
        checkpoint within the epoch has the same.
        """
        offline = self.recipe.offline
        if offline is None or not is_due(offline, epoch):
            return
        source = {"epoch": str(epoch)}
        mine_run(
            self.parts.evaluated,
            self.dataset,
            self.run.offline,
            top_texts=offline.num_texts,
            top_images=offline.num_images,
            source=source,
        )
        self.mined = self._open_mined()

    def _finish_epoch(self) -> None:
        """Evaluate on dev, keep the weights if they are the best so far, and move on."""
        self._read()
        done = self.state
        self.parts.optimizer.zero_grad(set_to_none=True)  # of batches that did not fill a step
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

    def batches(self) -> Loader[Batch]:
        training = self.recipe.training
        split = self.dataset.splits["train"]
        return training_batches(
            split,
            self.captions,
            batch_size=training.batch_size,
            captions_per_image=training.captions_per_image,
            seed=self.recipe.seed,
            epoch=self.state.epoch,
            start_batch=self.state.batch,
            reading=self.system.training_reading,
            num_workers=training.num_workers,
            pin_memory=self.system.device.type == "cuda",
            rank=processes.rank(),
            world_size=processes.world_size(),
            extend=self._extension(),
        )

    def _extension(self) -> Callable[[Plan], Plan] | None:
        """What is drawn for every batch of the epoch, where negatives were mined."""
        if self.mined is None:
            return None
        return partial(self.mined.extend, seed=self.recipe.seed, epoch=self.state.epoch)

    # --- one batch ------------------------------------------------------------------------------

    @property
    def batch_loss(self) -> BatchLoss:
        precision = self.recipe.training.precision
        extended = self.mined is not None
        return BatchLoss(self.system, precision, self.parts.loss, self.pair_ids, extended)

    def train_on(self, batch: Batch) -> Tensor:
        """The loss, which the device may still be computing."""
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
        """Add the gradient of a batch to the parameters', in parts where the recipe says so."""
        chunk = self.recipe.training.chunk
        num_texts = processes.total(len(batch.text_ids))
        embed = partial(self.batch_loss.embed, num_texts=num_texts)
        loss = partial(self._loss_of, batch)
        parts = [batch] if chunk is None else batch.in_parts(chunk)
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
        """For batches that share a step, and for the small numbers of float16."""
        scaled: Tensor = self.parts.scaler.scale(value / self.recipe.training.accumulate)
        return scaled

    def _update(self, loss: Tensor) -> Tensor:
        """One step of the optimiser; the length of the gradient before clipping."""
        training, model = self.recipe.training, self.system.model
        rate = self._learning_rate(self.state.step)
        for group in self.parts.optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        processes.average_gradients(model.parameters())
        self.parts.scaler.unscale_(self.parts.optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), training.clip or torch.inf)
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
        """Log what contributes to the gradient, in both directions, and how large it is."""
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
        """On dev, where there is one."""
        dev = self.dataset.splits.get("dev")
        if dev is None:
            return None
        system = self.parts.evaluated
        # BatchNorm statistics are of a process's own parts: those of the first are what is saved.
        processes.copy_from_first(system.model.buffers())
        return report_on(system, dev)

    def _save(self) -> None:
        self._read()
        self.checkpoints.save()


def _draw_differently(seed: int) -> None:
    """After equal initial weights, dropout is another one in every process."""
    if processes.rank() > 0:
        words = np.random.SeedSequence([seed, processes.rank()]).generate_state(1)
        torch.manual_seed(int(words[0]))
