"""Ctrl-C on the command line: one sentence at any moment, and no traceback.

While modules are imported, and when all is done, it ends the process at once: nothing can be lost
then, and an interrupt that is raised inside an import may come out as anything. While a command
works it is a KeyboardInterrupt, so that what is unfinished is saved or taken away.
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
"""What a process that Ctrl-C has ended exits with."""
_came = False


def say(sentence: str) -> None:
    """Print on stderr; of several processes only the first one speaks."""
    if _is_first():
        print(f"gradspace: {sentence}", file=sys.stderr, flush=True)


def leave_at_once() -> None:
    """Let Ctrl-C end the process, from here on."""
    signal.signal(signal.SIGINT, _leave)
    sys.unraisablehook = _leave_quietly


def leave_now() -> NoReturn:
    """Exit after Ctrl-C, without what Python does at its end.

    Where the interrupt came in the middle of an `exec`, as dataclasses are made with, Python would
    end itself by the signal, whatever became of it since.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(CODE)


def end_undisturbed() -> None:
    """Let Ctrl-C do nothing while Python ends: all is done, and the signal would be the result."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def raise_interrupts() -> None:
    """Raise Ctrl-C from here on, in a process that it would have ended."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, _raise)


def came() -> bool:
    """Whether Ctrl-C was raised, which may have become another error in a library."""
    return _came


@contextmanager
def withheld() -> Iterator[None]:
    """Keep Ctrl-C from processes that are started meanwhile: it is for the one that starts them."""
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # which would let Ctrl-C through when it is started
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _leave(number: int = signal.SIGINT, frame: FrameType | None = None) -> NoReturn:
    if _is_first():
        os.write(2, b"gradspace: stopped\n")  # whatever sys.stderr is in the middle of
    os._exit(CODE)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    global _came
    _came = True
    raise KeyboardInterrupt


def _leave_quietly(unraisable: Any) -> None:
    """An interrupt where none can be raised, as in a destructor, would be shown and forgotten."""
    if unraisable.exc_type is KeyboardInterrupt:
        _leave()
    sys.__unraisablehook__(unraisable)
