"""Traces that make actions visible: motion lines, strings, orbits, beams, wobble marks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PIL import ImageDraw

from gradspace.data.scenes.layout import REACH, TRAIL, orbit
from gradspace.data.scenes.world import Action, Point, Scene, SceneGroup

Colour = tuple[int, int, int]
LIGHT = (255, 232, 110, 130)
TILT = {"leaning_against": 24.0, "balancing_on": 16.0}


@dataclass(frozen=True)
class Pen:
    """Drawing tool with coordinates from 0 to 1."""

    draw: ImageDraw.ImageDraw
    width: int
    ink: Colour

    def line(self, points: Sequence[Point], thickness: float = 0.01) -> None:
        scaled = [(x * self.width, y * self.width) for x, y in points]
        self.draw.line(scaled, fill=(*self.ink, 225), width=max(1, round(thickness * self.width)))

    def light(self, points: Sequence[Point]) -> None:
        self.draw.polygon([(x * self.width, y * self.width) for x, y in points], fill=LIGHT)


def trace(pen: Pen, scene: Scene, action: Action) -> None:
    """Draw what belongs under the objects of an action."""
    _TRACES[action.name](pen, scene.groups[action.subject], scene.groups[action.target])


def tilt(scene: Scene, number: int) -> float:
    """Return the degrees, anticlockwise, by which an action turns the objects of a group."""
    for action in scene.actions:
        if action.subject == number and action.name in TILT:
            subject, target = scene.groups[number], scene.groups[action.target]
            towards_left = subject.centre[0] > target.centre[0]
            return TILT[action.name] if towards_left else -TILT[action.name]
    return 0.0


def _motion(pen: Pen, group: SceneGroup, away: float, length: float) -> None:
    """Draw three lines behind every object, on the side that `away` points to."""
    side = away * (REACH[group.shape][2] * group.radius + 0.012)
    for x, y in group.positions:
        for k, share in ((-0.55, 0.7), (0.0, 1.0), (0.55, 0.7)):
            start, height = x + side, y + k * group.radius
            pen.line([(start, height), (start + away * length * share, height)], 0.011)


def _away(subject: SceneGroup, target: SceneGroup) -> float:
    return math.copysign(1.0, subject.centre[0] - target.centre[0])


def _chase(pen: Pen, subject: SceneGroup, target: SceneGroup) -> None:
    away = _away(subject, target)
    _motion(pen, subject, away, TRAIL)
    _motion(pen, target, away, 0.045)


def _push(pen: Pen, subject: SceneGroup, target: SceneGroup) -> None:
    """Draw motion lines behind the subject and a scrape on the ground under the target."""
    away = _away(subject, target)
    _motion(pen, subject, away, 0.06)
    x, y = target.centre
    ground = y + 0.98 * target.radius
    for k in range(3):
        start = x - away * target.radius * (0.1 + 0.45 * k)
        pen.line([(start, ground), (start - away * 0.28 * target.radius, ground)], 0.011)


def _hang(pen: Pen, subject: SceneGroup, target: SceneGroup) -> None:
    """Draw a string for every subject, with its ends hidden behind the objects."""
    middle, bottom = target.centre[0], target.centre[1] + _inset(target, 1) * target.radius
    for x, y in subject.positions:
        top = y - _inset(subject, 0) * subject.radius
        pen.line([((middle + x) / 2, bottom), (x, top)], 0.013)


def _inset(group: SceneGroup, side: int) -> float:
    return 0.75 if group.shape == "ring" else 0.55 * REACH[group.shape][side]


def _orbit(pen: Pen, subject: SceneGroup, target: SceneGroup) -> None:
    wide, high = orbit(subject.radius, target.radius)
    x, y = target.centre
    for k in range(24):
        turns = [2 * math.pi * (k + part) / 24 for part in (0.0, 0.3, 0.6)]
        pen.line([(x + wide * math.cos(t), y + high * math.sin(t)) for t in turns], 0.01)


def _shine(pen: Pen, subject: SceneGroup, target: SceneGroup) -> None:
    """Draw a beam that widens towards the targets, and short rays around the subject."""
    x, y = subject.centre
    left, top, right, bottom = target.box
    far = (left + right) / 2
    spread = 0.3 * subject.radius
    pen.light([(x, y - spread), (far, top - 0.02), (far, bottom + 0.02), (x, y + spread)])
    for k in range(10):
        turn = 2 * math.pi * k / 10
        ends = [subject.radius * 1.12, subject.radius * 1.12 + 0.03]
        pen.line([(x + r * math.cos(turn), y + r * math.sin(turn)) for r in ends], 0.011)


def _wobble(pen: Pen, subject: SceneGroup, target: SceneGroup) -> None:
    """Draw two arcs on either side."""
    x, y = subject.centre
    for side in (0.0, math.pi):
        for reach in (1.15, 1.4):
            turns = [side + step * 0.14 for step in range(-4, 5)]
            radius = reach * subject.radius
            bow = [(x + radius * math.cos(t), y + radius * math.sin(t)) for t in turns]
            pen.line(bow, 0.01)


def _nothing(pen: Pen, subject: SceneGroup, target: SceneGroup) -> None:
    """Draw nothing, as contact alone shows the action."""


_TRACES: dict[str, Callable[[Pen, SceneGroup, SceneGroup], None]] = {
    "leaning_against": _nothing,
    "stacked_on": _nothing,
    "balancing_on": _wobble,
    "hanging_from": _hang,
    "chasing": _chase,
    "pushing": _push,
    "orbiting": _orbit,
    "shining_on": _shine,
}
