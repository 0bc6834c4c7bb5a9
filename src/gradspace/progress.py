"""How long work says how far it is."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with how many items are done, and of how many."""
