"""Which engine an index has: its own folder, or a database by its address."""

from __future__ import annotations

from pathlib import Path

from gradspace.search.contract import Engine
from gradspace.search.local import LocalEngine


def open_engine(address: str | None, folder: Path, width: int) -> Engine:
    """The engine at an address; without one the index keeps its vectors in its own folder."""
    if address is None:
        return LocalEngine(folder / "segments", width)
    raise ValueError(f"there is no engine for {address!r}")
