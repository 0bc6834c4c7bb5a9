"""Offers of an index to its user: capabilities, and queries that some of its items answer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gradspace.indexes.contract import Item, Kind
from gradspace.indexes.index import Index
from gradspace.indexes.searcher import Query, Searcher
from gradspace.indexes.where import Value, parse_condition

LOOKED_AT = 200
MOST_SENTENCES = 3
FEWEST_WORDS, LONGEST = 2, 48
"""Fewest words of a sentence, and longest sentence or condition in characters."""
SIZES = ("width", "height")
"""Fields listed last, because every photo has them."""


@dataclass(frozen=True)
class Offer:
    """Capabilities of an index, and suggestions to try."""

    reads_pictures: bool
    explains: bool
    sentences: list[str]
    """Captions of some of its items, in words that the model knows."""
    conditions: list[str]
    """A condition for each field in which its items differ, met by some of them."""


def make_offer(searcher: Searcher) -> Offer:
    """Try the capabilities of the model on some items of the index."""
    items = _some_items(searcher.index)
    return Offer(
        reads_pictures=searcher.reads_pictures,
        explains=searcher.explains,
        sentences=_sentences(items, lambda text: searcher.unknown_words(Query(text))),
        conditions=list(_conditions(items)),
    )


def _some_items(index: Index) -> list[Item]:
    """Return the items nearest to a fixed direction, which any engine finds quickly."""
    direction = np.random.default_rng(0).standard_normal(index.record.width).astype(np.float32)
    query = direction[None] / np.linalg.norm(direction)
    kind: Kind = "image" if "image" in index.kinds else "caption"
    [hits] = index.engine.search(query, LOOKED_AT, kind)
    return [hit.item for hit in hits]


def _sentences(items: Sequence[Item], unknown_words: Callable[[str], Sequence[str]]) -> list[str]:
    """Select the shortest captions of images, evenly spaced."""
    found = []
    for item in items:
        usable = [line for line in item.text.split("\n") if _is_usable(line)]
        known = [line for line in usable if not unknown_words(line)]
        if known:
            found.append(min(known, key=len).rstrip("."))
    different = list(dict.fromkeys(found))
    step = max(1, len(different) // MOST_SENTENCES)
    return different[::step][:MOST_SENTENCES]


def _is_usable(line: str) -> bool:
    return len(line) <= LONGEST and len(line.split()) >= FEWEST_WORDS


def _conditions(items: Sequence[Item]) -> Iterator[str]:
    fields = dict.fromkeys(field for item in items for field in item.metadata)
    for field in sorted(fields, key=lambda name: name in SIZES):
        values = [item.metadata.get(field) for item in items]
        known = [value for value in values if value not in (None, "")]
        if len(set(values)) < 2 or not known:
            continue
        condition = _condition(field, known)
        if len(condition) <= LONGEST and _is_met(condition, items):
            yield condition


def _condition(field: str, values: Sequence[Value | None]) -> str:
    """Make a condition: a number or year that about half reach, or the most frequent text."""
    numbers = sorted(value for value in values if isinstance(value, int | float))
    if numbers:
        return f"{field}>={numbers[len(numbers) // 2]}"
    texts = sorted(str(value) for value in values)
    middle = texts[len(texts) // 2]
    if re.match(r"\d{4}-\d\d", middle):
        return f"{field}>={middle[:4]}"
    return f"{field}={Counter(texts).most_common(1)[0][0]}"


def _is_met(condition: str, items: Sequence[Item]) -> bool:
    """Whether some items meet a condition; some names of fields cannot be written in one."""
    try:
        parsed = parse_condition(condition)
    except ValueError:
        return False
    return any(parsed.is_met(item.metadata) for item in items)
