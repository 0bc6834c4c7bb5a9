"""Passages of five or six sentences about a person, and questions that they answer."""

from __future__ import annotations

import re

import numpy as np

from gradspace.data.questions.people import Person

QUESTIONS_EACH = 5

INTRODUCTION = (
    "{first} {last} is a {job} from {town}.",
    "{first} {last} lives in {town} and works there as a {job}.",
    "In {town} everybody knows {first} {last}, the {job}.",
)

SENTENCES = {
    "pet": (
        "At home a {colour} {animal} waits for {first}.",
        "A {colour} {animal} follows {first} everywhere.",
        "{first} has kept a {colour} {animal} for many years.",
    ),
    "gift": (
        "In {month} {first} bought a {material} {thing} for {friend}.",
        "{friend} got a {material} {thing} from {first} in {month}.",
        "A {material} {thing}, found in {month}, was a gift for {friend}.",
    ),
    "music": (
        "In the evening {first} plays the {instrument}.",
        "Neighbours hear the {instrument} whenever {first} has time.",
    ),
    "dish": (
        "Guests are always served {dish}.",
        "Nobody makes better {dish} than {first}.",
    ),
    "wish": (
        "One day {first} wants to move to {destination}.",
        "{first} dreams of a house in {destination}.",
    ),
}
"""Sentences of a passage after its introduction, in any order; at most one is left out."""

QUESTIONS: tuple[tuple[frozenset[str], tuple[str, ...]], ...] = (
    (frozenset(), ("What is the profession of {first} {last}?", "What does {first} {last} do?")),
    (
        frozenset({"pet"}),
        ("Which animal does {first} {last} keep?", "What pet has {first} {last}?"),
    ),
    (
        frozenset({"wish"}),
        ("Where does {first} {last} want to live?", "Which town does {first} {last} dream of?"),
    ),
    (
        frozenset({"music"}),
        ("What instrument does {first} {last} play?", "Which music does {first} {last} make?"),
    ),
    (
        frozenset({"pet"}),
        ("Who in {town} keeps a {colour} {animal}?", "Whose {animal} in {town} is {colour}?"),
    ),
    (
        frozenset({"gift"}),
        (
            "Where does the {job} live who bought a {material} {thing}?",
            "What is the name of the {job} who gave away a {material} {thing}?",
        ),
    ),
    (
        frozenset({"music", "dish"}),
        (
            "Which {job} plays the {instrument} and cooks {dish}?",
            "What is the name of the {job} who likes {dish} and the {instrument}?",
        ),
    ),
    (
        frozenset({"gift"}),
        (
            "Who bought a {thing} for {friend} in {month}?",
            "Who gave {friend} a {thing} in {month}?",
        ),
    ),
    (
        frozenset({"music", "wish"}),
        (
            "Who would leave {town} for {destination}, and take the {instrument} along?",
            "Who plays the {instrument} in {town} and would rather live in {destination}?",
        ),
    ),
)
"""Ways to ask, with the sentences that must be there; what they name is one of the clues."""


def write_passage(person: Person, rng: np.random.Generator) -> tuple[str, frozenset[str]]:
    """Write a passage, and say which sentences it has after the introduction."""
    order = [str(topic) for topic in rng.permutation(list(SENTENCES))]
    told = order[: len(order) - int(rng.integers(2))]
    sentences = [_pick(INTRODUCTION, rng), *(_pick(SENTENCES[topic], rng) for topic in told)]
    return " ".join(_fill(sentence, person) for sentence in sentences), frozenset(told)


def write_questions(
    person: Person, told: frozenset[str], rng: np.random.Generator
) -> tuple[str, ...]:
    """Write `QUESTIONS_EACH` different questions that the passage answers."""
    possible = [ways for needed, ways in QUESTIONS if needed <= told]
    chosen = rng.permutation(len(possible))[:QUESTIONS_EACH].tolist()
    return tuple(_fill(_pick(possible[number], rng), person) for number in chosen)


def _pick(ways: tuple[str, ...], rng: np.random.Generator) -> str:
    return ways[int(rng.integers(len(ways)))]


def _fill(sentence: str, person: Person) -> str:
    """Fill in a sentence, with `an` before vowels."""
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", sentence.format(**vars(person)))
