"""Pictures of single objects: a silhouette, light on its faces, a colour and a pattern.

Everything is drawn in a square with both axes from -REACH to REACH, in which objects have radius 1.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from gradspace.data.scenes.world import Point

Floats = NDArray[np.float64]
REACH = 1.12
PAINT = {
    "red": (214, 44, 48),
    "orange": (245, 138, 32),
    "yellow": (250, 212, 52),
    "green": (54, 166, 82),
    "blue": (46, 104, 214),
    "purple": (136, 70, 184),
    "pink": (248, 146, 190),
    "white": (244, 243, 238),
}
LIGHT_COLOURS = ("yellow", "pink", "white", "orange")


def _arc(
    centre: Point, wide: float, high: float, start: float = 0.0, end: float = 2 * math.pi
) -> list[Point]:
    turns = np.linspace(start, end, 48)
    return [(centre[0] + wide * math.cos(t), centre[1] + high * math.sin(t)) for t in turns]


def _star() -> list[Point]:
    points = []
    for k in range(10):
        radius, turn = (1.0, 0.46)[k % 2], math.pi * (k / 5 - 0.5)
        points.append((radius * math.cos(turn), radius * math.sin(turn) + 0.05))
    return points


def _heart() -> list[Point]:
    points = []
    for t in np.linspace(0, 2 * math.pi, 64):
        up = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
        points.append((0.94 * math.sin(t) ** 3, -up / 17.5))
    return points


OUTLINES: dict[str, list[Point]] = {
    "ball": _arc((0, 0), 0.98, 0.98),
    "ring": _arc((0, 0), 0.98, 0.98),
    "cube": [(0, -0.98), (0.86, -0.5), (0.86, 0.5), (0, 0.98), (-0.86, 0.5), (-0.86, -0.5)],
    "cone": [(0, -0.98), *_arc((0, 0.66), 0.74, 0.27, 0, math.pi)],
    "star": _star(),
    "cylinder": [
        *_arc((0, -0.7), 0.68, 0.26, math.pi, 2 * math.pi),
        *_arc((0, 0.7), 0.68, 0.26, 0, math.pi),
    ],
    "heart": _heart(),
    "diamond": [(-0.5, -0.7), (0.5, -0.7), (0.94, -0.2), (0, 0.95), (-0.94, -0.2)],
}
# Flat faces and the brightness of each.
FACES: dict[str, list[tuple[list[Point], float]]] = {
    "cube": [
        ([(0, -0.98), (0.86, -0.5), (0, -0.02), (-0.86, -0.5)], 1.22),
        ([(-0.86, -0.5), (0, -0.02), (0, 0.98), (-0.86, 0.5)], 0.98),
        ([(0.86, -0.5), (0, -0.02), (0, 0.98), (0.86, 0.5)], 0.72),
    ],
    "cylinder": [(_arc((0, -0.7), 0.68, 0.26), 1.25)],
    "star": [
        ([(0, 0.05), _star()[k], _star()[(k + 1) % 10]], 1.14 if k % 2 else 0.84) for k in range(10)
    ],
    "diamond": [
        ([(-0.5, -0.7), (-0.35, -0.2), (-0.94, -0.2)], 1.02),
        ([(-0.5, -0.7), (0.5, -0.7), (0.35, -0.2), (-0.35, -0.2)], 1.28),
        ([(0.5, -0.7), (0.94, -0.2), (0.35, -0.2)], 0.9),
        ([(-0.94, -0.2), (-0.35, -0.2), (0, 0.95)], 1.1),
        ([(-0.35, -0.2), (0.35, -0.2), (0, 0.95)], 0.94),
        ([(0.35, -0.2), (0.94, -0.2), (0, 0.95)], 0.74),
    ],
}


def sprite(
    shape: str, colour: Sequence[float], pattern: str, bright: bool, size: int
) -> Image.Image:
    """Draw an upright object as RGBA, `size` pixels wide; `bright` colours get dark patterns."""
    mask, light = _relief(shape, size)
    marks, glare = _marks(pattern, size)
    paint = np.asarray(colour, float)
    other = paint * 0.5 if bright else 0.2 * paint + 0.8 * 255
    base = paint + marks[..., None] * (other - paint)
    shaded = base * light[..., None]
    shaded += glare[..., None] * (255 - shaded)
    pixels = np.dstack([shaded.clip(0, 255), 255 * mask])
    return Image.fromarray(pixels.astype(np.uint8))


def _grid(size: int) -> tuple[Floats, Floats]:
    axis = (np.arange(size) + 0.5) / size * 2 * REACH - REACH
    u, v = np.meshgrid(axis, axis)
    return u, v


def _fill(points: Sequence[Point], size: int) -> Floats:
    """Compute how much of every pixel lies inside a polygon."""
    fine = 4 * size
    canvas = Image.new("L", (fine, fine))
    scaled = [((x / REACH + 1) * fine / 2, (y / REACH + 1) * fine / 2) for x, y in points]
    ImageDraw.Draw(canvas).polygon(scaled, fill=255)
    return np.asarray(canvas.reduce(4), float) / 255


@lru_cache(maxsize=512)
def _relief(shape: str, size: int) -> tuple[Floats, Floats]:
    """Compute coverage and brightness of every pixel of a shape, with a dark rim."""
    u, v = _grid(size)
    distance = np.hypot(u, v)
    mask = _fill(OUTLINES[shape], size)
    if shape == "ring":
        mask = mask * (1 - _fill(_arc((0, 0), 0.5, 0.5), size))
        light = 1.22 - 1.6 * np.abs(distance - 0.7) - 0.14 * (u + v)
    elif shape in ("cone", "cylinder"):
        light = 1.2 - 0.7 * np.abs(u + 0.22)
    else:
        light = 1.25 - 0.42 * np.hypot(u + 0.35, v + 0.4)
    for points, brightness in FACES.get(shape, []):
        inside = _fill(points, size)
        light = light + inside * (brightness - light)
    solid = Image.fromarray((255 * mask).astype(np.uint8))
    width = max(3, size // 24 * 2 + 1)
    core = np.asarray(solid.filter(ImageFilter.MinFilter(width)), float) / 255
    return mask, light * (0.5 + 0.5 * core)


@lru_cache(maxsize=512)
def _marks(pattern: str, size: int) -> tuple[Floats, Floats]:
    """Compute where a pattern has its second colour, and where the surface reflects white light."""
    u, v = _grid(size)
    none = np.zeros_like(u)
    sharp = size / 10
    if pattern == "striped":
        return (0.5 + sharp * np.sin(7.5 * (u + 0.45 * v) + 0.8)).clip(0, 1), none
    if pattern == "checkered":
        return (0.5 + sharp * np.sin(6.5 * u + 0.9) * np.sin(6.5 * v + 0.9)).clip(0, 1), none
    if pattern == "dotted":
        step = 0.52
        row = np.round(v / step)
        across = u / step - 0.5 * (row % 2)
        distance = step * np.hypot(across - np.round(across), v / step - row)
        return (0.5 + sharp * 2 * (0.155 - distance)).clip(0, 1), none
    if pattern == "shiny":
        spot = np.exp(-(((u + 0.32) / 0.24) ** 2 + ((v + 0.34) / 0.2) ** 2))
        band = np.exp(-(((u + v - 0.42) / 0.13) ** 2)) + np.exp(-(((u + v - 0.78) / 0.06) ** 2))
        return none, (1.15 * spot + 0.62 * band).clip(0, 0.95)
    return none, none
