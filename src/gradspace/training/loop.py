"""The training loop: one pass from a recipe to a run, from any point it was stopped at."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import isfinite
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from gradspace import processes
from gradspace.data.batches import Batch, training_batches
from gradspace.data.captions import EncodedCaptions
from gradspace.data.dataset import Dataset, Split
from gradspace.data.loader import Loader
from gradspace.data.order import Plan
from gradspace.files import only_writer
from gradspace.loss.retrieval_loss import RetrievalLoss
from gradspace.metrics import RetrievalReport, retrieval_report
from gradspace.models import RetrievalModel
from gradspace.runs.checkpoint import (
    optimizer_tensors,
    random_states,
    restore_optimizer,
    restore_random_states,
    with_prefix,
    without_prefix,
)
from gradspace.runs.folder import Run, tensorboard_events
from gradspace.runs.mine import mine_run
from gradspace.runs.recipe import Recipe, build_objective
from gradspace.runs.represent import represent_split
from gradspace.runs.system import System
from gradspace.tensor_files import load_tensors, save_tensors
from gradspace.training.batch_loss import BatchLoss
from gradspace.training.caching import Outcome, backward, cached_backward
from gradspace.training.health import CollapseWatch, TrainingError, check_gradient, not_finite
from gradspace.training.monitor import Monitor
from gradspace.training.pair_batches import check_processes
from gradspace.training.readings import Readings
from gradspace.training.schedule import learning_rate, stage_of, stages
from gradspace.training.second_round import Mined, is_due, open_mined
from gradspace.training.stopping import Stopping, stop_signals

OPTIMIZERS: dict[str, type[Optimizer]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
CHECK_EVERY = 10
"""Steps between two looks at whether the embeddings are all alike."""


@dataclass(frozen=True)
class Progress:
    """How far a run is: what a checkpoint must know besides tensors."""

    epoch: int = 0
    batch: int = 0
    """Batches of the epoch that are done."""
    step: int = 0
    """Updates of the weights that are done."""
    best_rsum: float = -1.0
    loss_sum: float = 0.0
    """Of the batches of the epoch that are done."""


def train(recipe: Recipe, dataset: Dataset, system: System, run: Run, monitor: Monitor) -> Progress:
    """Train to the end of the recipe, or until asked to stop; goes on where the run stands.

    Of several processes (`processes.group`) all call this, each with its own part of every batch:
    their weights stay the same, and the first one writes the run.
    """
    check_processes(system.model)
    _draw_differently(recipe.seed)
    with only_writer(run.folder) if processes.is_first() else nullcontext():
        return _train(Trainer(recipe, dataset, system, run, monitor))


def _train(trainer: Trainer) -> Progress:
    with stop_signals() as stopping:
        if trainer.run.last.exists():
            trainer.restore()
        else:
            trainer.begin()
        return trainer.run_epochs(stopping)


class Trainer:
    """The moving parts of a run: weights, optimiser, average weights, progress."""

    def __init__(
        self, recipe: Recipe, dataset: Dataset, system: System, run: Run, monitor: Monitor
    ) -> None:
        self.recipe = recipe
        self.dataset = dataset
        self.system = system
        self.run = run
        self.monitor = monitor
        self.progress = Progress()
        self.collapse = CollapseWatch()
        self.average = _average_of(system.model, recipe.training.ema)
        self.optimizer = self._make_optimizer(epoch=0)
        self.loss = self._make_loss(epoch=0)
        self.mined = self._open_mined()
        self.captions = EncodedCaptions(system.encode, dataset.splits["train"].captions)
        self.saved_at = time.monotonic()
        self.readings = Readings(system.device)
        tracked = recipe.training.tensorboard and processes.is_first()
        self.events = tensorboard_events(run) if tracked else None
        half = recipe.training.precision == "float16"
        self.scaler = torch.amp.GradScaler(system.device.type, enabled=half)

    # --- epochs ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """From the first batch on; with the weights of another run, dev tells whether they fit."""
        if processes.is_first():  # what a run that was killed before its first checkpoint had done
            self.run.metrics_file.unlink(missing_ok=True)
        if self.recipe.init is not None and (report := self._evaluate()) is not None:
            self._log(kind="start", step=0, dev=report.to_dict())
            self.monitor.started(report)

    def run_epochs(self, stopping: Stopping) -> Progress:
        end = stages(self.recipe)[-1].end
        while self.progress.epoch < end:
            if not self._run_epoch(stopping):
                self.save()
                return self.progress
            self._finish_epoch()
            self._save_if_due(finished=self.progress.epoch == end)
        return self.progress

    def _run_epoch(self, stopping: Stopping) -> bool:
        """Train on the batches that are left of the epoch; False when asked to stop."""
        recipe, epoch = self.recipe.training, self.progress.epoch
        if self.progress.batch == 0:
            self._renew_parts(epoch)
            self._mine_anew(epoch)
        batches = self.batches()
        self.monitor.start_epoch(epoch, self.progress.batch + len(batches), self.progress.batch)
        self.system.model.train()
        for batch in batches:
            self.train_on(batch)
            done = self.progress.batch + 1
            self.progress = replace(self.progress, batch=done)
            if self.readings.are_due:
                self._read()
            if done % recipe.accumulate == 0:
                self._save_if_due()
                if processes.any_of(stopping.requested):
                    return False
        return True

    def _read(self) -> None:
        """Look at what the latest batches gave; a gradient that is none ends the run."""
        for step, loss, norm in self.readings.read():
            if not isfinite(norm) and not self.scaler.is_enabled():
                raise not_finite(step, loss)
            self.progress = replace(self.progress, loss_sum=self.progress.loss_sum + loss)
            self.monitor.batch_done(self.recipe.training.batch_size, loss)

    def _renew_parts(self, epoch: int) -> None:
        """What an epoch starts anew: the optimiser of a stage, the loss after its warm-up."""
        if stage_of(self.recipe, epoch).first_epoch == epoch > 0:
            self.optimizer = self._make_optimizer(epoch)
        if epoch == 1 and self.recipe.objective.warm_up:
            self.loss = self._make_loss(epoch)

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
            self._evaluated_system(),
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
        done = self.progress
        self.optimizer.zero_grad(set_to_none=True)  # of batches that did not fill a step
        report = self._evaluate()
        values: dict[str, Any] = {"loss": done.loss_sum / max(done.batch, 1)}
        if report is not None:
            values["dev"] = report.to_dict()
            if report.rsum > done.best_rsum:
                done = replace(done, best_rsum=report.rsum)
                self._save_weights(report)
        elif done.epoch + 1 == stages(self.recipe)[-1].end:
            self._save_weights(None)
        self._log(kind="epoch", step=done.step, epoch=done.epoch, **values)
        self.monitor.epoch_done(done.epoch, values["loss"], report)
        self.progress = replace(done, epoch=done.epoch + 1, batch=0, loss_sum=0.0)

    def batches(self) -> Loader[Batch]:
        training = self.recipe.training
        split = self.dataset.splits["train"]
        return training_batches(
            split,
            self.captions,
            batch_size=training.batch_size,
            captions_per_image=training.captions_per_image,
            seed=self.recipe.seed,
            epoch=self.progress.epoch,
            start_batch=self.progress.batch,
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
        return partial(self.mined.extend, seed=self.recipe.seed, epoch=self.progress.epoch)

    # --- one batch ------------------------------------------------------------------------------

    @property
    def batch_loss(self) -> BatchLoss:
        precision = self.recipe.training.precision
        return BatchLoss(self.system, precision, self.loss, extended=self.mined is not None)

    def train_on(self, batch: Batch) -> Tensor:
        """The loss, which the device may still be computing."""
        training, step = self.recipe.training, self.progress.step
        outcome = self._backward(batch)
        value = outcome.loss
        if outcome.extra is not None:
            processes.average([outcome.extra])
            value = value + outcome.extra
        if step % CHECK_EVERY == 0:
            images, texts = map(processes.gather_rows, self.batch_loss.vectors(outcome, batch))
            self.collapse.check(images, texts, step)
        norm = None
        if (self.progress.batch + 1) % training.accumulate == 0:
            norm = self._update(value)
            if step % training.track_every == 0:
                self._track(outcome, batch, value, norm)
        self.readings.add(step, value, norm)
        return value

    def _backward(self, batch: Batch) -> Outcome:
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
                f"{error} at step {self.progress.step}: the weights have overflowed; "
                "lower training.learning_rate"
            ) from error

    def _scale(self, value: Tensor) -> Tensor:
        """For batches that share a step, and for the small numbers of float16."""
        scaled: Tensor = self.scaler.scale(value / self.recipe.training.accumulate)
        return scaled

    def _update(self, loss: Tensor) -> Tensor:
        """One step of the optimiser; the length of the gradient before clipping."""
        training, model = self.recipe.training, self.system.model
        rate = learning_rate(self.recipe, self.progress.epoch, self.progress.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        processes.average_gradients(model.parameters())
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), training.clip or torch.inf)
        if self.system.device.type == "cpu" and not self.scaler.is_enabled():
            check_gradient(model, norm, loss, self.progress.step)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update_parameters(model)
        self.progress = replace(self.progress, step=self.progress.step + 1)
        return norm

    def _track(self, outcome: Outcome, batch: Batch, value: Tensor, norm: Tensor) -> None:
        """Log what contributes to the gradient, in both directions, and how large it is."""
        found = self.batch_loss.contributions(outcome, batch)
        self._log(
            kind="step",
            step=self.progress.step,
            epoch=self.progress.epoch,
            loss=float(value),
            gradient=float(norm),
            learning_rate=learning_rate(self.recipe, self.progress.epoch, self.progress.step - 1),
            **found,
        )

    def _log(self, **values: Any) -> None:
        if processes.is_first():
            self.run.log(events=self.events, **values)

    # --- parts ----------------------------------------------------------------------------------

    def _make_loss(self, epoch: int) -> RetrievalLoss:
        objective = build_objective(self.recipe, warm_up=epoch == 0)
        chosen = self.recipe.objective
        loss = RetrievalLoss(
            objective,
            positives=chosen.positives,
            memory=chosen.memory,
            checks=self.system.device.type == "cpu",  # a GPU's gradients are looked at later
        )
        return loss.to(self.system.device)

    def _make_optimizer(self, epoch: int) -> Optimizer:
        stage, training = stage_of(self.recipe, epoch), self.recipe.training
        self.system.model.fine_tune_backbone(stage.train_backbone)
        kind: type[Optimizer] = OPTIMIZERS[training.optimizer]
        groups = self.system.model.parameter_groups(1.0)
        for group in groups:
            group["factor"] = group["lr"]
        settings: dict[str, Any] = {
            "lr": 1.0,
            "weight_decay": training.weight_decay,
            "fused": self.system.device.type == "cuda",
        }
        return kind(groups, **settings)

    def _evaluate(self) -> RetrievalReport | None:
        dev: Split | None = self.dataset.splits.get("dev")
        if dev is None:
            return None
        system = self._evaluated_system()
        # BatchNorm statistics are of a process's own parts: those of the first are what is saved.
        processes.copy_from_first(system.model.buffers())
        found = represent_split(system, dev)
        return retrieval_report(found.scores(), found.positives())

    def _evaluated_system(self) -> System:
        """With the average weights, where the run keeps them."""
        if self.average is None:
            return self.system
        return replace(self.system, model=cast(RetrievalModel, self.average.module))

    # --- checkpoints ----------------------------------------------------------------------------

    def _save_if_due(self, finished: bool = False) -> None:
        """The first process looks at its clock, for all."""
        waited = time.monotonic() - self.saved_at
        due = processes.is_first() and waited >= self.recipe.training.save_every
        if finished or processes.any_of(due):
            self.save()

    def save(self) -> None:
        """Everything that training needs to go on; of random states a row for each process."""
        self._read()
        states = random_states(self.system.device).items()
        random = {name: processes.gather_rows(state[None]) for name, state in states}
        if not processes.is_first():
            return
        tensors = {
            **with_prefix("model", self.system.model.state_dict()),
            **with_prefix("optimizer", optimizer_tensors(self.optimizer)),
            **with_prefix("loss", self.loss.state_dict()),
            **with_prefix("random", random),
        }
        if self.average is not None:
            tensors |= with_prefix("average", self.average.state_dict())
        record = {
            "progress": asdict(self.progress),
            "scaler": self.scaler.state_dict(),
            "times_alike": self.collapse.times_alike,
            "feature_shape": self.system.feature_shape,
        }
        save_tensors(self.run.last, tensors, record)
        self.saved_at = time.monotonic()

    def restore(self) -> None:
        tensors, record = load_tensors(self.run.last)
        self.progress = Progress(**record["progress"])
        if not tensors:
            return  # of a finished run of a comparison
        self.system.model.load_state_dict(without_prefix("model", tensors))
        if self.average is not None:
            self.average.load_state_dict(without_prefix("average", tensors))
        last_epoch = self.progress.epoch if self.progress.batch else max(self.progress.epoch - 1, 0)
        self.optimizer = self._make_optimizer(last_epoch)
        restore_optimizer(self.optimizer, without_prefix("optimizer", tensors))
        self.loss = self._make_loss(last_epoch)
        self.loss.load_state_dict(without_prefix("loss", tensors))
        self._restore_random(without_prefix("random", tensors))
        self.scaler.load_state_dict(record["scaler"])
        self.collapse.times_alike = record["times_alike"]
        if processes.is_first():
            self.run.forget_after(self.progress.step, self.progress.epoch)

    def _restore_random(self, states: dict[str, Tensor]) -> None:
        """The state of this process; one that was not there when the run stopped starts anew."""
        rank = processes.rank()
        if rank < len(states["cpu"]):
            mine = {name: rows[rank] for name, rows in states.items()}
            restore_random_states(mine, self.system.device)

    def _save_weights(self, report: RetrievalReport | None) -> None:
        if not processes.is_first():
            return
        model = self._evaluated_system().model
        record = {
            "step": self.progress.step,
            "epoch": self.progress.epoch,
            "dev": report.to_dict() if report else None,
            "feature_shape": self.system.feature_shape,
        }
        self.run.forget_results()
        save_tensors(self.run.best, with_prefix("model", model.state_dict()), record)


def _draw_differently(seed: int) -> None:
    """After equal initial weights, dropout is another one in every process."""
    if processes.rank() > 0:
        words = np.random.SeedSequence([seed, processes.rank()]).generate_state(1)
        torch.manual_seed(int(words[0]))


def _average_of(model: nn.Module, decay: float | None) -> AveragedModel | None:
    if decay is None:
        return None
    average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
    return AveragedModel(model, multi_avg_fn=average, use_buffers=True)
