"""Callbacks by which long work reports its progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Progress = Callable[[int, int], None]
"""Callback that gets the number of items done and their total."""

Show = Callable[[str], AbstractContextManager[Progress]]
"""Context manager that shows a phase of work: `with show("embedding") as progress: ...`."""


@contextmanager
def silently(what: str) -> Iterator[Progress]:
    """Show nothing."""
    yield lambda done, total: None
