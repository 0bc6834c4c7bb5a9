"""Drawing of a scene: backdrop, traces of actions, soft shadows, objects."""

import colorsys

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from gradspace.data.scenes.backdrops import backdrop, ink
from gradspace.data.scenes.sprites import LIGHT_COLOURS, PAINT, REACH, sprite
from gradspace.data.scenes.traces import Pen, tilt, trace
from gradspace.data.scenes.world import Scene, SceneGroup

OVERSAMPLING = 2
SHADOW = 0.42

Placed = tuple[Image.Image, int, int]


def render(scene: Scene, size: int, rng: np.random.Generator) -> Image.Image:
    """Render an RGB image; `rng` varies the part of the backdrop, hues and rotations."""
    width = OVERSAMPLING * size
    canvas = backdrop(scene.backdrop, width, rng)
    pen = Pen(ImageDraw.Draw(canvas, "RGBA"), width, ink(scene.backdrop))
    for action in scene.actions:
        trace(pen, scene, action)
    subjects = {action.subject for action in scene.actions}
    objects: list[Placed] = []
    for number in sorted(range(len(scene.groups)), key=lambda i: i in subjects):
        objects += _objects(scene.groups[number], tilt(scene, number), width, rng)
    _cast_shadows(canvas, objects)
    for picture, left, top in objects:
        canvas.paste(picture, (left, top), picture)
    return canvas.reduce(OVERSAMPLING)


def _objects(group: SceneGroup, turn: float, width: int, rng: np.random.Generator) -> list[Placed]:
    """Draw the sprites of a group, each slightly rotated, with the corners where they go."""
    pixels = round(2 * group.radius * REACH * width)
    bright = group.colour in LIGHT_COLOURS
    picture = sprite(group.shape, _shade(group.colour, rng), group.pattern, bright, pixels)
    placed = []
    for x, y in group.positions:
        turned = picture.rotate(turn + rng.uniform(-5, 5), Image.Resampling.BICUBIC)
        placed.append((turned, round(x * width - pixels / 2), round(y * width - pixels / 2)))
    return placed


def _shade(colour: str, rng: np.random.Generator) -> tuple[float, float, float]:
    """Vary a colour slightly in hue, saturation and brightness."""
    hue, saturation, value = colorsys.rgb_to_hsv(*(c / 255 for c in PAINT[colour]))
    changes = rng.uniform(-1, 1, 3)
    red, green, blue = colorsys.hsv_to_rgb(
        (hue + 0.012 * changes[0]) % 1,
        min(1.0, saturation * (1 + 0.1 * changes[1])),
        min(1.0, value * (1 + 0.06 * changes[2])),
    )
    return 255 * red, 255 * green, 255 * blue


def _cast_shadows(canvas: Image.Image, objects: list[Placed]) -> None:
    """Darken the canvas below and to the right of every object; drawn at half size for blur."""
    half = canvas.width // 2
    shadow = Image.new("L", (half, half))
    for picture, left, top in objects:
        alpha = picture.getchannel("A").reduce(2)
        drop = alpha.width // 14
        shadow.paste(round(255 * SHADOW), (left // 2 + drop, top // 2 + int(1.7 * drop)), alpha)
    soft = shadow.filter(ImageFilter.BoxBlur(half / 64)).filter(ImageFilter.BoxBlur(half / 64))
    canvas.paste((12, 10, 24), (0, 0), soft.resize(canvas.size, Image.Resampling.BILINEAR))
