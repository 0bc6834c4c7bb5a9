"""Wording of counts, shares and paths in sentences."""

from __future__ import annotations

import shlex
from pathlib import Path


def counted(number: int, what: str) -> str:
    """Format a count with its noun.

    >>> counted(1, "pair"), counted(2000, "pair"), counted(3, "query")
    ('1 pair', '2,000 pairs', '3 queries')
    """
    if number == 1:
        return f"1 {what}"
    plural = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{number:,} {plural}"


def percent(share: float) -> str:
    """Format a share of one in percent.

    >>> percent(0.985)
    '98.5%'
    """
    return f"{100 * share:.1f}%"


def typed(path: str | Path) -> str:
    """Quote a path for a shell.

    >>> typed("runs/first"), typed("my runs/first")
    ('runs/first', "'my runs/first'")
    """
    return shlex.quote(str(path))
