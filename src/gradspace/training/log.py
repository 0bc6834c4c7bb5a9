"""What a training writes down: metrics.jsonl, and TensorBoard's events where they are asked for."""

from __future__ import annotations

from typing import Any

from gradspace import processes
from gradspace.runs.folder import Run, tensorboard_events


class TrainingLog:
    """Lines of measurements; only the first process writes."""

    def __init__(self, run: Run, *, tensorboard: bool) -> None:
        self.run = run
        wanted = tensorboard and processes.is_first()
        self.events = tensorboard_events(run) if wanted else None

    def start(self) -> None:
        """Drop what a run that was killed before its first checkpoint had written."""
        if processes.is_first():
            self.run.metrics_file.unlink(missing_ok=True)

    def write(self, **values: Any) -> None:
        if processes.is_first():
            self.run.log(events=self.events, **values)
