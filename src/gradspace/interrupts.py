"""Handling of Ctrl-C on the command line: one sentence at any moment, and no traceback.

While modules are being imported, and after all work is done, Ctrl-C ends the process at once:
nothing can be lost then, and an interrupt raised inside an import may surface as any error. While a
command works it is a KeyboardInterrupt, so that unfinished work is saved or removed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

CODE = 130
"""Exit code of a process that was ended by Ctrl-C."""
_came = False


def say(sentence: str) -> None:
    """Print on stderr; of several processes only the first prints."""
    if _is_first():
        print(f"gradspace: {sentence}", file=sys.stderr, flush=True)


def leave_at_once() -> None:
    """Let Ctrl-C end the process at once from here on."""
    signal.signal(signal.SIGINT, _leave)
    sys.unraisablehook = _leave_quietly


def leave_now() -> NoReturn:
    """Exit after Ctrl-C, skipping Python's finalization.

    If the interrupt came in the middle of an `exec`, which dataclasses use, Python would kill
    itself with the signal, however the interrupt was handled since.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(CODE)


def end_undisturbed() -> None:
    """Let Ctrl-C do nothing while Python ends: all is done, and the signal would be the result."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def raise_interrupts() -> None:
    """Raise KeyboardInterrupt from here on, in a process that Ctrl-C would have ended."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, _raise)


def came() -> bool:
    """Whether Ctrl-C was raised, even if a library turned it into another error."""
    return _came


@contextmanager
def withheld() -> Iterator[None]:
    """Keep Ctrl-C from processes started inside; only the one that starts them handles it."""
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # starting it later would let Ctrl-C through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _leave(number: int = signal.SIGINT, frame: FrameType | None = None) -> NoReturn:
    if _is_first():
        os.write(2, b"gradspace: stopped\n")  # sys.stderr may be in the middle of a write
    os._exit(CODE)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    global _came
    _came = True
    raise KeyboardInterrupt


def _leave_quietly(unraisable: Any) -> None:
    """Exit on an interrupt in a destructor, which would otherwise be printed and ignored."""
    if unraisable.exc_type is KeyboardInterrupt:
        _leave()
    sys.__unraisablehook__(unraisable)
