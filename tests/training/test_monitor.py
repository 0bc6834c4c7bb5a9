"""What a person sees while a run trains."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from gradspace.training.monitor import Monitor


def test_the_clock_goes_on_after_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    console = Console(file=StringIO(), force_terminal=True, width=200, get_time=lambda: now[0])
    monkeypatch.setattr("gradspace.training.monitor.time.monotonic", console.get_time)
    monitor = Monitor(console, 2)
    bar = monitor._bar
    for epoch, shown in enumerate(("0:01:10", "0:02:20")):
        monitor.start_epoch(epoch, 1, 0)
        now[0] += 60
        monitor.batch_done(32, 1.0)
        now[0] += 10  # on dev, when the bar of the epoch is full
        with console.capture() as seen:
            console.print(bar.make_tasks_table(bar.tasks))
        assert shown in seen.get()
