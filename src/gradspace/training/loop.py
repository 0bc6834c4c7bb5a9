"""The training loop: one pass from a recipe to a run, from any point it was stopped at."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from types import FrameType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from gradspace.analysis.cocos import cocos
from gradspace.checkpoint import (
    load_checkpoint,
    optimizer_tensors,
    random_states,
    restore_optimizer,
    restore_random_states,
    save_checkpoint,
    with_prefix,
    without_prefix,
)
from gradspace.data.batches import Batch, training_batches
from gradspace.data.dataset import Dataset, Split
from gradspace.data.loader import Loader
from gradspace.embedding import embed_split
from gradspace.loss import RetrievalLoss
from gradspace.metrics import RetrievalReport, retrieval_report
from gradspace.models import RetrievalModel
from gradspace.positives import match_ids
from gradspace.recipes import Recipe, build_objective
from gradspace.runs import Run, tensorboard_events
from gradspace.system import System
from gradspace.training.health import CollapseWatch, TrainingError, check_gradient
from gradspace.training.monitor import Monitor
from gradspace.training.schedule import learning_rate, stage_of, stages

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
    """Train to the end of the recipe, or until asked to stop; goes on where the run stands."""
    trainer = Trainer(recipe, dataset, system, run, monitor)
    if run.last.exists():
        trainer.restore()
    with stop_signals() as stopping:
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
        self.events = tensorboard_events(run) if recipe.training.tensorboard else None
        half = recipe.training.precision == "float16"
        self.scaler = torch.amp.GradScaler(system.device.type, enabled=half)

    # --- epochs ---------------------------------------------------------------------------------

    def run_epochs(self, stopping: Stopping) -> Progress:
        end = stages(self.recipe)[-1].end
        while self.progress.epoch < end:
            if not self._run_epoch(stopping):
                self.save()
                return self.progress
            self._finish_epoch()
        return self.progress

    def _run_epoch(self, stopping: Stopping) -> bool:
        """Train on the batches that are left of the epoch; False when asked to stop."""
        recipe, epoch = self.recipe.training, self.progress.epoch
        if stage_of(self.recipe, epoch).first_epoch == epoch > 0 == self.progress.batch:
            self.optimizer = self._make_optimizer(epoch)
        loss = self._make_loss(epoch)
        batches = self._batches()
        self.monitor.start_epoch(epoch, self.progress.batch + len(batches), self.progress.batch)
        self.system.model.train()
        for batch in batches:
            value = self._train_on(batch.to(self.system.device), loss)
            done = self.progress.batch + 1
            self.progress = replace(
                self.progress, batch=done, loss_sum=self.progress.loss_sum + value
            )
            self.monitor.batch_done(len(batch.text_ids), value)
            if done % recipe.accumulate == 0:
                if self.progress.step % recipe.save_every == 0:
                    self.save()
                if stopping.requested:
                    return False
        return True

    def _finish_epoch(self) -> None:
        """Evaluate on dev, keep the weights if they are the best so far, and move on."""
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
        self.run.log(events=self.events, kind="epoch", step=done.step, epoch=done.epoch, **values)
        self.monitor.epoch_done(done.epoch, values["loss"], report)
        self.progress = replace(done, epoch=done.epoch + 1, batch=0, loss_sum=0.0)
        self.save()

    def _batches(self) -> Loader[Batch]:
        training = self.recipe.training
        split = self.dataset.splits["train"]
        return training_batches(
            split,
            self.system.encode,
            batch_size=training.batch_size,
            captions_per_image=training.captions_per_image,
            seed=self.recipe.seed,
            epoch=self.progress.epoch,
            start_batch=self.progress.batch,
            pixels=self.system.training_crop,
            num_workers=training.num_workers,
            pin_memory=self.system.device.type == "cuda",
        )

    # --- one batch ------------------------------------------------------------------------------

    def _train_on(self, batch: Batch, loss: RetrievalLoss) -> float:
        training = self.recipe.training
        step = self.progress.step
        with self.system.autocast(training.precision):
            images, texts = self.system.model(
                batch.images, batch.tokens, batch.lengths, _image_of_text(batch)
            )
            try:
                value = loss(images, texts, batch.image_ids, batch.text_ids)
            except ValueError as error:
                raise TrainingError(
                    f"{error} at step {step}: the weights have overflowed; "
                    "lower training.learning_rate"
                ) from error
            extra = self.system.model.extra_loss()
        total = value if extra is None else value + extra
        self.scaler.scale(total / training.accumulate).backward()
        if step % CHECK_EVERY == 0:
            self.collapse.check(images, texts, step)
        if (self.progress.batch + 1) % training.accumulate == 0:
            norm = self._update(total)
            if step % training.track_every == 0:
                self._track(loss, images, texts, batch, total, norm)
        return float(total.detach())

    def _update(self, loss: Tensor) -> Tensor:
        """One step of the optimiser; the length of the gradient before clipping."""
        training, model = self.recipe.training, self.system.model
        rate = learning_rate(self.recipe, self.progress.epoch, self.progress.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), training.clip or torch.inf)
        if not self.scaler.is_enabled():
            check_gradient(model, norm, loss, self.progress.step)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update_parameters(model)
        self.progress = replace(self.progress, step=self.progress.step + 1)
        return norm

    @torch.no_grad()
    def _track(
        self,
        loss: RetrievalLoss,
        images: Tensor,
        texts: Tensor,
        batch: Batch,
        value: Tensor,
        norm: Tensor,
    ) -> None:
        """Log what contributes to the gradient, in both directions, and how large it is."""
        scores = images.float() @ texts.float().t()
        positives = match_ids(batch.image_ids, batch.text_ids)
        objective = loss.objective
        self.run.log(
            events=self.events,
            kind="step",
            step=self.progress.step,
            epoch=self.progress.epoch,
            loss=float(value),
            gradient=float(norm),
            learning_rate=learning_rate(self.recipe, self.progress.epoch, self.progress.step - 1),
            image_to_text=asdict(cocos(objective, scores, positives)),
            text_to_image=asdict(cocos(objective, scores.t(), positives.transpose())),
        )

    # --- parts ----------------------------------------------------------------------------------

    def _make_loss(self, epoch: int) -> RetrievalLoss:
        objective = build_objective(self.recipe, warm_up=epoch == 0)
        return RetrievalLoss(objective, positives=self.recipe.objective.positives)

    def _make_optimizer(self, epoch: int) -> Optimizer:
        stage, training = stage_of(self.recipe, epoch), self.recipe.training
        self.system.model.fine_tune_backbone(stage.train_backbone)
        kind: type[Optimizer] = OPTIMIZERS[training.optimizer]
        groups = self.system.model.parameter_groups(1.0)
        for group in groups:
            group["factor"] = group["lr"]
        defaults: dict[str, Any] = {"lr": 1.0, "weight_decay": training.weight_decay}
        return kind(groups, **defaults)

    def _evaluate(self) -> RetrievalReport | None:
        dev: Split | None = self.dataset.splits.get("dev")
        if dev is None:
            return None
        embeddings = embed_split(self._evaluated_system(), dev)
        return retrieval_report(embeddings.scores(), embeddings.positives())

    def _evaluated_system(self) -> System:
        """With the average weights, where the run keeps them."""
        if self.average is None:
            return self.system
        return replace(self.system, model=cast(RetrievalModel, self.average.module))

    # --- checkpoints ----------------------------------------------------------------------------

    def save(self) -> None:
        """Everything that training needs to go on."""
        tensors = {
            **with_prefix("model", self.system.model.state_dict()),
            **with_prefix("optimizer", optimizer_tensors(self.optimizer)),
            **with_prefix("random", random_states()),
        }
        if self.average is not None:
            tensors |= with_prefix("average", self.average.state_dict())
        record = {
            "progress": asdict(self.progress),
            "scaler": self.scaler.state_dict(),
            "times_alike": self.collapse.times_alike,
            "feature_shape": self.system.feature_shape,
        }
        save_checkpoint(self.run.last, tensors, record)

    def restore(self) -> None:
        tensors, record = load_checkpoint(self.run.last)
        self.progress = Progress(**record["progress"])
        self.system.model.load_state_dict(without_prefix("model", tensors))
        if self.average is not None:
            self.average.load_state_dict(without_prefix("average", tensors))
        last_epoch = self.progress.epoch if self.progress.batch else max(self.progress.epoch - 1, 0)
        self.optimizer = self._make_optimizer(last_epoch)
        restore_optimizer(self.optimizer, without_prefix("optimizer", tensors))
        restore_random_states(without_prefix("random", tensors))
        self.scaler.load_state_dict(record["scaler"])
        self.collapse.times_alike = record["times_alike"]
        self.run.forget_after(self.progress.step, self.progress.epoch)

    def _save_weights(self, report: RetrievalReport | None) -> None:
        model = self._evaluated_system().model
        record = {
            "step": self.progress.step,
            "epoch": self.progress.epoch,
            "dev": report.to_dict() if report else None,
            "feature_shape": self.system.feature_shape,
        }
        save_checkpoint(self.run.best, with_prefix("model", model.state_dict()), record)


def _image_of_text(batch: Batch) -> Tensor | None:
    """The row of each text's image; None where it is the text's own row."""
    if len(batch.image_ids) == len(batch.text_ids):
        return None
    return (batch.text_ids[:, None] == batch.image_ids).int().argmax(1)


@dataclass
class Stopping:
    """Set when the user or the machine asks the run to stop."""

    requested: bool = False


@contextmanager
def stop_signals() -> Iterator[Stopping]:
    """Ctrl-C and SIGTERM stop after the current step; a second Ctrl-C stops at once."""
    stopping = Stopping()

    def request(number: int, frame: FrameType | None) -> None:
        if stopping.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        stopping.requested = True

    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _average_of(model: nn.Module, decay: float | None) -> AveragedModel | None:
    if decay is None:
        return None
    average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
    return AveragedModel(model, multi_avg_fn=average, use_buffers=True)
