"""How long work says how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Progress = Callable[[int, int], None]
"""Called with how many items are done, and of how many."""

Show = Callable[[str], AbstractContextManager[Progress]]
"""Shows a phase of some work while it lasts: `with show("embedding") as progress: ...`."""


@contextmanager
def silently(what: str) -> Iterator[Progress]:
    """Show nothing."""
    yield lambda done, total: None
