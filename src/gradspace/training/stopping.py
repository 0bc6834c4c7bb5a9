"""Requests to stop a run, from the user or from the machine."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Stopping:
    """Flag set when the user or the machine asks the run to stop."""

    requested: bool = False


@contextmanager
def stop_signals() -> Iterator[Stopping]:
    """Make Ctrl-C and SIGTERM stop after the current step; a second Ctrl-C stops at once."""
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
