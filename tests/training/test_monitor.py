"""What a person sees while a run trains."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from gradspace.training.monitor import Monitor


@pytest.mark.parametrize("width", [80, 200])
def test_the_clock_goes_on_after_an_epoch(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """In one line, also of a long training in a terminal of the usual width."""
    now = [0.0]
    console = Console(
        file=StringIO(),
        force_terminal=True,
        width=width,
        get_time=lambda: now[0],
        color_system=None,
    )
    monkeypatch.setattr("gradspace.training.monitor.time.monotonic", console.get_time)
    monitor = Monitor(console, 30)
    monitor.recall = "  R@1 12.3 | 45.6"
    bar = monitor._bar
    for epoch, clocks in enumerate((("0:01:10", "0:28:00"), ("0:02:20", "0:30:20")), 10):
        monitor.start_epoch(epoch, 1875, 1874)
        monitor._batches_left = 29
        now[0] += 60
        monitor.batch_done(128, 12345.678)
        now[0] += 10  # on dev, when the bar of the epoch is full
        with console.capture() as seen:
            console.print(bar.make_tasks_table(bar.tasks))
        [line] = seen.get().splitlines()
        assert line.split()[-3::2] == list(clocks)
        assert "loss 12345.678  R@1 12.3 | 45.6" in line
        assert ("pairs/s" in line) == (width == 200)
