"""Display of a training: a bar per epoch, the loss, R@1, speed and time left."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
)
from rich.table import Column
from rich.text import Text

from gradspace.metrics import RetrievalReport
from gradspace.wording import counted

ROOMY = 100
"""Number of terminal columns from which the speed is shown as well."""


class Elapsed(ProgressColumn):
    """Column of the time since training began; rich's own stops at the first finished bar."""

    def __init__(self) -> None:
        super().__init__(Column(no_wrap=True))  # if space is short, the bar shrinks, not this

    def render(self, task: Task) -> Text:
        return Text(_clock(task.elapsed or 0), style="progress.elapsed")


class Monitor:
    """Shows a run on a console; quiet without one."""

    def __init__(self, console: Console | None, num_epochs: int) -> None:
        self.console = console
        self.num_epochs = num_epochs
        self.recall = ""
        self._bar = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[values]}"),
            Elapsed(),
            TextColumn("left {task.fields[left]}"),
            console=console,
            transient=True,
            disable=console is None or not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None, epoch="", values="", left="")
        self._started = time.monotonic()
        self._batches_done = 0
        self._batches_left = 0
        self._pairs = 0
        self._left_out = 0
        self._first_left_out = ""

    def __enter__(self) -> Monitor:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    @property
    def has_trained(self) -> bool:
        """Whether there was anything left to train."""
        return self._batches_done > 0

    def started(self, report: RetrievalReport) -> None:
        """Print the results of the initial weights taken from another run."""
        if self.console is not None:
            self.console.print("before training" + _on_dev(report), markup=False, highlight=False)

    def start_epoch(self, epoch: int, num_batches: int, first_batch: int) -> None:
        epochs_after = self.num_epochs - epoch - 1
        self._batches_left = num_batches - first_batch + epochs_after * num_batches
        self._bar.update(
            self._task,
            total=num_batches,
            completed=first_batch,
            epoch=f"{epoch + 1}/{self.num_epochs}",
        )

    def batch_done(self, num_pairs: int, loss: float) -> None:
        self._batches_done += 1
        self._batches_left -= 1
        self._pairs += num_pairs
        seconds = time.monotonic() - self._started
        left = seconds / self._batches_done * self._batches_left
        roomy = self.console is not None and self.console.width >= ROOMY
        speed = f"  {self._pairs / seconds:,.0f} pairs/s" if roomy else ""
        self._bar.update(
            self._task,
            advance=1,
            values=f"loss {loss:.3f}{self.recall}{speed}",
            left=_clock(left),
        )

    def left_out(self, samples: Sequence[str]) -> None:
        """Count samples of a stream that could not be used."""
        self._left_out += len(samples)
        self._first_left_out = self._first_left_out or samples[0]

    def epoch_done(self, epoch: int, loss: float, report: RetrievalReport | None) -> None:
        if self.console is None:
            return
        line = f"epoch {epoch + 1:>3}/{self.num_epochs}  loss {loss:9.3f}"
        if report is not None:
            i2t, t2i = report.image_to_text.recall, report.text_to_image.recall
            self.recall = f"  R@1 {i2t[1]:.1f} | {t2i[1]:.1f}"
            line += _on_dev(report)
        self.console.print(line, markup=False, highlight=False)
        if self._left_out:
            self.console.print(
                f"  {counted(self._left_out, 'sample')} left out, the first is "
                f"{self._first_left_out}; metrics.jsonl names all of them",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
            self._left_out, self._first_left_out = 0, ""


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=int(seconds)))


def _on_dev(report: RetrievalReport) -> str:
    i2t, t2i = report.image_to_text.recall, report.text_to_image.recall
    return f"  dev R@1 {i2t[1]:5.1f} | {t2i[1]:5.1f}  rsum {report.rsum:6.1f}"
