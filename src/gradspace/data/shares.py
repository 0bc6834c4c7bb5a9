"""Splits for data that names none: shares of the images, chosen by hashing their names."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

Fraction = Annotated[float, Field(ge=0, le=1)]
Splits = Mapping[str, Sequence[str]]
"""Image names by split."""


def how_drawn(what: str, dev: float, test: float) -> str:
    """Describe how `shares` chooses."""
    return (
        f"no splits are named, so {100 * dev:g}% of the {what} are dev and {100 * test:g}% test, "
        "chosen by their names (to choose yourself, add train.txt, dev.txt and test.txt)"
    )


def shares(names: Sequence[str], dev: float, test: float) -> Splits:
    """Choose splits, with at least one image for every share above zero."""
    if dev + test > 1:
        raise ValueError(f"dev_share and test_share must add up to at most 1, got {dev} and {test}")
    by_hash = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    num_test, num_dev = (max(round(share * len(names)), int(share > 0)) for share in (test, dev))
    parts = {
        "train": set(by_hash[num_test + num_dev :]),
        "dev": set(by_hash[num_test : num_test + num_dev]),
        "test": set(by_hash[:num_test]),
    }
    return {split: [n for n in names if n in part] for split, part in parts.items() if part}
