"""Positions of groups: each group, or each pair joined by an action, gets a part of the picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradspace.data.scenes.world import Box, Point

RADIUS = {"small": 0.062, "large": 0.108}
ZOOM = {1: 1.35, 2: 1.1, 3: 1.0, 4: 1.0}
MARGIN = 0.025
TRAIL = 0.085
"""Length of the motion lines behind a chaser."""

# Gap between subject and target; in other actions they touch.
GAP = {"chasing": 0.14, "shining_on": 0.19, "hanging_from": 0.13, "orbiting": 0.05}
VERTICAL = ("stacked_on", "balancing_on", "hanging_from")

# Extent of each silhouette above, below and beside its centre, in radii.
REACH = {
    "ball": (0.97, 0.97, 0.97),
    "cube": (0.62, 0.97, 0.86),
    "cone": (0.97, 0.9, 0.62),
    "star": (0.95, 0.78, 0.8),
    "ring": (0.97, 0.97, 0.97),
    "cylinder": (0.78, 0.97, 0.68),
    "heart": (0.55, 0.85, 0.85),
    "diamond": (0.68, 0.95, 0.85),
}
CLUSTERS: dict[int, tuple[Point, ...]] = {
    1: ((0, 0),),
    2: ((-1, 0), (1, 0)),
    3: ((-1, 0.85), (1, 0.85), (0, -0.85)),
    4: ((-1, -1), (1, -1), (-1, 1), (1, 1)),
}

Disc = tuple[float, float, float]  # x, y, radius


@dataclass(frozen=True)
class Member:
    """Properties of a group that layout depends on."""

    shape: str
    radius: float
    count: int


def cluster(member: Member, rng: np.random.Generator) -> list[Point]:
    """Place the objects of a group side by side around the origin, slightly out of line."""
    step = 1.1 * member.radius
    shake = rng.uniform(-0.1, 0.1, (member.count, 2)) * member.radius
    corners = CLUSTERS[member.count]
    return [
        (x * step + dx, y * step + dy)
        for (x, y), (dx, dy) in zip(corners, shake.tolist(), strict=True)
    ]


def pair(
    action: str, subject: Member, target: Member, rng: np.random.Generator
) -> tuple[list[Point], list[Point]]:
    """Place subject and target so that `action` can be drawn, the target at the origin."""
    reach, other = REACH[subject.shape], REACH[target.shape]
    if action == "orbiting":
        rx, ry = orbit(subject.radius, target.radius)
        start = rng.uniform(-0.5, 0.5) + math.pi * float(rng.integers(2))
        turns = [start + 2 * math.pi * k / subject.count for k in range(subject.count)]
        return [(rx * math.cos(t), ry * math.sin(t)) for t in turns], [(0.0, 0.0)]
    if action in VERTICAL:
        hanging = action == "hanging_from"
        ends = (reach[0], other[1]) if hanging else (reach[1], other[0])
        distance = ends[0] * subject.radius + ends[1] * target.radius + GAP.get(action, 0.0)
        step, down = 1.1 * subject.radius, distance if hanging else -distance
        return [(x * step, down) for x, _ in CLUSTERS[subject.count]], [(0.0, 0.0)]
    side = 1.0 if rng.random() < 0.5 else -1.0
    away = side * (reach[2] * subject.radius + other[2] * target.radius + GAP.get(action, 0.0))
    floor = target.radius * other[1] - subject.radius * reach[1]
    return (
        [(away, floor + x * 1.1 * subject.radius) for x, _ in CLUSTERS[subject.count]],
        [(0.0, x * 1.1 * target.radius) for x, _ in CLUSTERS[target.count]],
    )


def orbit(subject_radius: float, target_radius: float) -> Point:
    """Return half width and half height of the ellipse on which a subject circles its target."""
    wide = 1.1 * target_radius + subject_radius + GAP["orbiting"]
    return wide, 0.62 * wide


def cells(num_units: int, tall: bool, rng: np.random.Generator) -> list[Box]:
    """Divide the picture, halves before quarters; `tall` halves stand side by side."""
    halves: list[Box] = [(0.0, 0.0, 0.5, 1.0), (0.5, 0.0, 1.0, 1.0)]
    quarters: list[Box] = [(x, y, x + 0.5, y + 0.5) for x in (0.0, 0.5) for y in (0.0, 0.5)]
    chosen = {
        1: [(0.0, 0.0, 1.0, 1.0)],
        2: halves,
        3: [halves[0], *quarters[2:]],
        4: quarters,
    }[num_units]
    if rng.random() < 0.5:
        chosen = [(1 - x1, y0, 1 - x0, y1) for x0, y0, x1, y1 in chosen]
    return chosen if tall else [(y0, x0, y1, x1) for x0, y0, x1, y1 in chosen]


def shift(box: Box, cell: Box, rng: np.random.Generator) -> Point:
    """Draw a random move that brings `box` inside `cell`, or to its middle if it does not fit."""
    moves = []
    for low, high in ((0, 2), (1, 3)):
        first, last = cell[low] + MARGIN - box[low], cell[high] - MARGIN - box[high]
        middle, room = (first + last) / 2, max(last - first, 0.0) / 2
        moves.append(middle + room * rng.uniform(-1, 1))
    return moves[0], moves[1]


def free_space(
    action: str, subject: Member, target: Member, positions: Sequence[Point]
) -> list[Disc]:
    """List the discs that the traces of an action cover; `positions` are those of the subject."""
    if action == "orbiting":
        rx, ry = orbit(subject.radius, target.radius)
        ends = ((-rx, 0.0), (rx, 0.0), (0.0, -ry), (0.0, ry))
        return [(x, y, subject.radius) for x, y in ends]
    if action in ("chasing", "pushing"):
        return [(x + math.copysign(TRAIL, x), y, subject.radius) for x, y in positions]
    return []


def around(discs: Sequence[Disc]) -> Box:
    """Return the box around all discs."""
    return (
        min(x - r for x, _, r in discs),
        min(y - r for _, y, r in discs),
        max(x + r for x, _, r in discs),
        max(y + r for _, y, r in discs),
    )
