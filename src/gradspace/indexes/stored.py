"""Common parts of engines: limits of stored items, and translation of conditions."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradspace.indexes.contract import Item, Vectors
from gradspace.indexes.where import COMPARISONS, Condition, Value

MOST_OFF = 0.01
"""Largest deviation of a vector's length from 1."""
LARGEST_WHOLE = 2**53
"""Limit beyond which whole numbers are not exact when compared as floating-point numbers."""


def check_collection(name: str) -> str:
    """Check the name of an index within a database, which becomes part of a table's name."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name):
        raise ValueError(
            "a collection's name must have up to 40 lower-case letters, digits and _, with a "
            f"letter first; got {name!r}"
        )
    return name


def check_items(items: Sequence[Item], vectors: Vectors, width: int) -> NDArray[np.float16]:
    """Convert vectors to the stored format, after checking that all items can be stored."""
    if vectors.shape != (len(items), width):
        raise ValueError(
            f"vectors of {len(items)} items of this index are {len(items)} x {width}; got "
            f"{' x '.join(map(str, vectors.shape))}: use a separate index for another model"
        )
    off = np.abs(np.linalg.norm(vectors.astype(np.float32), axis=1) - 1)
    if not (off < MOST_OFF).all():
        worst = int(np.argmax(np.where(np.isfinite(off), off, np.inf)))
        raise ValueError(f"the vector of {items[worst].key!r} is not of length 1: normalise it")
    seen = set[str]()
    for item in items:
        if item.key in seen:
            raise ValueError(f"the key {item.key!r} occurs twice; keys must be unique")
        seen.add(item.key)
        _check_item(item)
    return vectors.astype(np.float16)


def _check_item(item: Item) -> None:
    for text in (item.key, item.text, item.image, item.fingerprint, *item.metadata):
        check_text(text, f"the item {item.key!r}")
    for name, value in item.metadata.items():
        if isinstance(value, str):
            check_text(value, f"{name} of the item {item.key!r}")
        elif not math.isfinite(value) or (isinstance(value, int) and abs(value) > LARGEST_WHOLE):
            raise ValueError(
                f"{name} of the item {item.key!r} is {value}: numbers must be finite, and whole "
                "ones at most 2**53; make it a text"
            )


def check_text(text: str, what: str) -> None:
    """Reject characters that not all databases can store in a text."""
    if re.search("[\0\ud800-\udfff]", text):
        raise ValueError(f"{what} has a NUL or half a surrogate pair in {text!r}: leave it out")


def check_condition(condition: Condition) -> None:
    if condition.comparison not in COMPARISONS:
        raise ValueError(
            f"a comparison must be one of {' '.join(COMPARISONS)}; got {condition.comparison!r}"
        )
    check_text(condition.field + condition.value, f"the condition {str(condition)!r}")


def as_json(item: Item) -> dict[str, Value]:
    """Return an item's metadata; truth values become the numbers that they are in Python."""
    return {n: int(v) if isinstance(v, bool) else v for n, v in item.metadata.items()}


def folded(item: Item) -> dict[str, str]:
    """Return an item's texts case-folded, since no database folds case as Python does."""
    return {n: v.casefold() for n, v in item.metadata.items() if isinstance(v, str)}


def compared_with(condition: Condition) -> float | bool:
    """Return the number to compare with, or the outcome if it is the same for all numbers."""
    number = condition.number
    if number is None:
        return False
    return number if math.isfinite(number) else COMPARISONS[condition.comparison](0.0, number)
