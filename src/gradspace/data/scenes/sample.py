"""Random scenes: the number of groups, their attributes, actions and positions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from gradspace.data.scenes import layout
from gradspace.data.scenes.world import (
    ACTIONS,
    BACKDROPS,
    COLOURS,
    COUNTS,
    MAX_GROUPS,
    PATTERNS,
    SHAPES,
    SIZES,
    Action,
    Point,
    Scene,
    SceneGroup,
)

GROUP_WEIGHTS = (0.12, 0.33, 0.33, 0.22)
COUNT_WEIGHTS = (0.5, 0.22, 0.16, 0.12)
PATTERN_WEIGHTS = (0.32, 0.17, 0.17, 0.17, 0.17)
ACTION_CHANCE = 0.7
MAX_OBJECTS = 9
# Largest numbers of subjects and targets for which an action is easy to see.
MOST = {"chasing": (2, 2), "shining_on": (1, 2), "hanging_from": (2, 1), "orbiting": (2, 1)}

T = TypeVar("T")


@dataclass(frozen=True)
class _Draft:
    """A group without a position."""

    shape: str
    colour: str
    size: str
    pattern: str
    count: int


def pick(rng: np.random.Generator, options: Sequence[T], weights: Sequence[float] = ()) -> T:
    """Choose one of `options`; much faster than `rng.choice` for short lists."""
    if not weights:
        return options[int(rng.integers(len(options)))]
    threshold = rng.random() * sum(weights)
    for option, weight in zip(options, weights, strict=True):
        threshold -= weight
        if threshold < 0:
            return option
    return options[-1]


def sample_scene(rng: np.random.Generator) -> Scene:
    """Draw a scene with groups of different shapes, at most nine objects, at most two actions."""
    drafts = _draft_groups(rng)
    actions = _draft_actions(rng, drafts)
    for action in actions:
        drafts[action.subject], drafts[action.target] = _fit(
            action.name, drafts[action.subject], drafts[action.target]
        )
    places, zoom = _place(rng, drafts, actions)
    groups = tuple(
        SceneGroup(d.shape, d.colour, d.size, d.pattern, places[i], zoom * layout.RADIUS[d.size])
        for i, d in enumerate(drafts)
    )
    return Scene(pick(rng, BACKDROPS), groups, tuple(actions))


def _draft_groups(rng: np.random.Generator) -> list[_Draft]:
    num_groups = pick(rng, range(1, MAX_GROUPS + 1), GROUP_WEIGHTS)
    shapes = rng.permutation(len(SHAPES))[:num_groups]
    drafts: list[_Draft] = []
    room = MAX_OBJECTS
    for left, shape in zip(reversed(range(num_groups)), shapes, strict=True):
        count = min(pick(rng, COUNTS, COUNT_WEIGHTS), room - left)
        room -= count
        pattern = pick(rng, PATTERNS, PATTERN_WEIGHTS)
        drafts.append(_Draft(SHAPES[shape], pick(rng, COLOURS), pick(rng, SIZES), pattern, count))
    return drafts


def _draft_actions(rng: np.random.Generator, drafts: Sequence[_Draft]) -> list[Action]:
    """Draw actions between groups (0, 1) and (2, 3); two of them share an axis, to fit halves."""
    actions: list[Action] = []
    for subject in range(0, len(drafts) - 1, 2):
        if rng.random() < ACTION_CHANCE:
            choices = [name for name in ACTIONS if _suits(name, drafts[subject].shape, actions)]
            actions.append(Action(pick(rng, choices), subject, subject + 1))
    return actions


def _suits(name: str, subject_shape: str, others: Sequence[Action]) -> bool:
    if name == "leaning_against" and subject_shape in ("ball", "ring"):
        return False  # a tilted circle looks like an upright one
    vertical = name in layout.VERTICAL
    return all(vertical == (other.name in layout.VERTICAL) for other in others)


def _fit(name: str, subject: _Draft, target: _Draft) -> tuple[_Draft, _Draft]:
    subjects, targets = MOST.get(name, (1, 1))
    return (
        replace(
            subject,
            count=min(subject.count, subjects),
            size="small" if name == "orbiting" else subject.size,
        ),
        replace(target, count=min(target.count, targets)),
    )


def _place(
    rng: np.random.Generator, drafts: Sequence[_Draft], actions: Sequence[Action]
) -> tuple[dict[int, tuple[Point, ...]], float]:
    """Place every group, and return the enlargement of objects relative to their usual size."""
    paired = {i for action in actions for i in (action.subject, action.target)}
    singles = [i for i in range(len(drafts)) if i not in paired]
    num_units = len(actions) + len(singles)
    zoom = layout.ZOOM[num_units]
    members = [layout.Member(d.shape, zoom * layout.RADIUS[d.size], d.count) for d in drafts]
    units: list[tuple[dict[int, list[Point]], list[layout.Disc]]] = []
    for a in actions:
        subject, target = members[a.subject], members[a.target]
        doing, undergoing = layout.pair(a.name, subject, target, rng)
        free = layout.free_space(a.name, subject, target, doing)
        units.append(({a.subject: doing, a.target: undergoing}, free))
    units += [({i: layout.cluster(members[i], rng)}, []) for i in singles]
    tall = actions[0].name in layout.VERTICAL if actions else rng.random() < 0.5
    placed: dict[int, tuple[Point, ...]] = {}
    for (unit, free), cell in zip(units, layout.cells(num_units, tall, rng), strict=True):
        discs = [(x, y, members[i].radius) for i, points in unit.items() for x, y in points]
        dx, dy = layout.shift(layout.around(discs + free), cell, rng)
        placed |= {i: tuple((x + dx, y + dy) for x, y in pts) for i, pts in unit.items()}
    return placed, zoom
