"""People of a split of `questions`: each is a pure function of seed, split and index.

People come in families of `FAMILY`. Members share their last name and town, and about half of
everything else, so that the passages next to the right one are truly hard to tell from it. Yet
no two people of a split share any of the `CLUES`: every question has one answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from gradspace.data.questions import lexicon

FAMILY = 4
LARGEST = 2000
"""Largest number of people in a split, beyond which unused names become rare."""


@dataclass(frozen=True)
class Person:
    first: str
    last: str
    town: str
    job: str
    colour: str
    animal: str
    material: str
    thing: str
    month: str
    friend: str
    instrument: str
    dish: str
    destination: str


POOLS = {
    "first": lexicon.FIRST_NAMES,
    "last": lexicon.LAST_NAMES,
    "town": lexicon.TOWNS,
    "job": lexicon.JOBS,
    "colour": lexicon.COLOURS,
    "animal": lexicon.ANIMALS,
    "material": lexicon.MATERIALS,
    "thing": lexicon.THINGS,
    "month": lexicon.MONTHS,
    "friend": lexicon.FIRST_NAMES,
    "instrument": lexicon.INSTRUMENTS,
    "dish": lexicon.DISHES,
    "destination": lexicon.TOWNS,
}

CLUES = (
    ("first", "last"),
    ("town", "colour", "animal"),
    ("job", "material", "thing"),
    ("job", "instrument", "dish"),
    ("thing", "friend", "month"),
    ("town", "instrument", "destination"),
)
"""Facts that together identify one person of a split, and may therefore be asked with."""

SHARED = ("last", "town")
SHARE_OF_OTHERS = 0.5


def people(split_number: int, count: int, seed: int) -> list[Person]:
    """Draw the first `count` people of a split; smaller splits are beginnings of larger ones."""
    found: list[Person] = []
    taken: set[tuple[str, ...]] = set()
    for family in range(-(-count // FAMILY)):
        rng = np.random.default_rng([seed, split_number, family])
        eldest = _draw(rng, None, taken)
        found.append(eldest)
        found.extend(_draw(rng, eldest, taken) for _ in range(FAMILY - 1))
    return found[:count]


def _draw(rng: np.random.Generator, eldest: Person | None, taken: set[tuple[str, ...]]) -> Person:
    """Draw a person whose clues are not taken yet, and take them."""
    while True:
        person = _candidate(rng, eldest)
        clues = set(_clues(person))
        if clues & taken or person.friend == person.first or person.town == person.destination:
            continue
        taken |= clues
        return person


def _candidate(rng: np.random.Generator, eldest: Person | None) -> Person:
    numbers = rng.integers([len(pool) for pool in POOLS.values()]).tolist()
    facts = {
        name: pool[number] for (name, pool), number in zip(POOLS.items(), numbers, strict=True)
    }
    if eldest is not None:
        alike = rng.random(len(facts)) < SHARE_OF_OTHERS
        for field, same in zip(fields(Person), alike.tolist(), strict=True):
            if field.name in SHARED or same:
                facts[field.name] = getattr(eldest, field.name)
    return Person(**facts)


def _clues(person: Person) -> Iterator[tuple[str, ...]]:
    for names in CLUES:
        yield (*names, *(getattr(person, name) for name in names))
