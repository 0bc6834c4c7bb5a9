"""Backdrops: large textures made once per process, of which every image shows a random part."""

from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from gradspace.data.scenes.world import BACKDROPS

Colour = tuple[int, int, int]
EXTRA = 1.5
"""Width of a texture relative to the image that shows a part of it."""

BASE: dict[str, Colour] = {
    "table": (176, 128, 84),
    "rug": (150, 116, 122),
    "tiles": (206, 214, 218),
    "grass": (120, 172, 92),
    "snow": (232, 238, 246),
    "sand": (228, 204, 160),
    "water": (104, 168, 200),
    "night": (26, 30, 62),
}


def ink(backdrop: str) -> Colour:
    """Return a colour for motion lines and strings that stands out from a backdrop."""
    return (236, 236, 250) if backdrop == "night" else (52, 46, 48)


def backdrop(name: str, size: int, rng: np.random.Generator) -> Image.Image:
    """Draw a random part of a backdrop as an RGB picture, `size` pixels wide."""
    texture = _texture(name, size)
    left, top = (rng.random(2) * (texture.width - size)).astype(int).tolist()
    part = texture.crop((left, top, left + size, top + size))
    if rng.random() < 0.5:
        part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    tint = Image.new("RGB", part.size, tuple(rng.integers(0, 256, 3).tolist()))
    return Image.blend(part, tint, 0.05)


@lru_cache(maxsize=32)
def _texture(name: str, size: int) -> Image.Image:
    width = int(EXTRA * size)
    canvas = Image.new("RGB", (width, width), BASE[name])
    rng = np.random.default_rng([1, BACKDROPS.index(name)])
    painter = _PAINTERS[name]
    painter(ImageDraw.Draw(canvas, "RGBA"), width, rng)
    return canvas.filter(ImageFilter.GaussianBlur(size / 400))


def _table(draw: ImageDraw.ImageDraw, width: int, rng: np.random.Generator) -> None:
    plank = width / 7
    for row in range(7):
        top = row * plank
        shade = int(rng.integers(-14, 15))
        fill = (176 + shade, 128 + shade, 84 + shade)
        draw.rectangle((0, top, width, top + plank), fill=fill)
        for _ in range(12):
            y = top + rng.random() * plank
            x = rng.random() * width
            length = width * rng.uniform(0.1, 0.5)
            draw.line((x, y, x + length, y), fill=(110, 70, 36, 60), width=max(1, width // 200))
        draw.line((0, top, width, top), fill=(92, 58, 32, 170), width=max(1, width // 130))


def _rug(draw: ImageDraw.ImageDraw, width: int, rng: np.random.Generator) -> None:
    step = width / 9
    for row in range(10):
        for column in range(10):
            x, y = (column + 0.5 * (row % 2)) * step, row * step
            diamond = [(x, y - step / 2), (x + step / 2, y), (x, y + step / 2), (x - step / 2, y)]
            draw.polygon(diamond, outline=(214, 190, 170, 110), width=max(1, width // 90))
            small = [(x, y - step / 6), (x + step / 6, y), (x, y + step / 6), (x - step / 6, y)]
            draw.polygon(small, fill=(214, 190, 170, 90))
    for _ in range(900):
        x, y = rng.random(2) * width
        draw.line((x, y, x, y + width / 60), fill=(90, 60, 70, 45), width=max(1, width // 300))


def _tiles(draw: ImageDraw.ImageDraw, width: int, rng: np.random.Generator) -> None:
    step = width / 6
    for row in range(6):
        for column in range(6):
            shade = int(rng.integers(-10, 11)) - (12 if (row + column) % 2 else 0)
            x, y = column * step, row * step
            fill = (206 + shade, 214 + shade, 218 + shade)
            draw.rectangle((x, y, x + step, y + step), fill=fill)
            draw.line((x + 2, y + 3, x + step, y + 3), fill=(255, 255, 255, 130), width=2)
    for k in range(7):
        at, line = k * step, max(1, width // 110)
        draw.line((at, 0, at, width), fill=(146, 156, 164), width=line)
        draw.line((0, at, width, at), fill=(146, 156, 164), width=line)


def _grass(draw: ImageDraw.ImageDraw, width: int, rng: np.random.Generator) -> None:
    for _ in range(1500):
        x, y = rng.random(2) * width
        lean, length = rng.uniform(-0.4, 0.4), width * rng.uniform(0.015, 0.04)
        tone = (78, 138, 58, 110) if rng.random() < 0.55 else (168, 208, 118, 120)
        end = (x + lean * length, y - length)
        draw.line((x, y, *end), fill=tone, width=max(1, width // 170))


def _snow(draw: ImageDraw.ImageDraw, width: int, rng: np.random.Generator) -> None:
    for _ in range(14):
        x, y = rng.random(2) * width
        wide, high = width * rng.uniform(0.15, 0.4), width * rng.uniform(0.02, 0.06)
        draw.ellipse((x - wide, y - high, x + wide, y + high), fill=(202, 216, 234, 90))
    for _ in range(260):
        x, y = rng.random(2) * width
        r = width * rng.uniform(0.002, 0.007)
        draw.ellipse((x - r, y - r, x + r, y + r), fill=(255, 255, 255, 230))


def _sand(draw: ImageDraw.ImageDraw, width: int, rng: np.random.Generator) -> None:
    across = np.linspace(0, width, 60)
    for k in range(26):
        phase, high = rng.random() * 6.28, width * rng.uniform(0.006, 0.014)
        y = k * width / 25 + high * np.sin(across / width * 22 + phase)
        points = list(zip(across.tolist(), y.tolist(), strict=True))
        draw.line(points, fill=(196, 166, 118, 90), width=max(1, width // 120))
    for _ in range(700):
        x, y = rng.random(2) * width
        r = max(0.7, width * 0.0018)
        draw.ellipse((x - r, y - r, x + r, y + r), fill=(170, 138, 92, 120))


def _water(draw: ImageDraw.ImageDraw, width: int, rng: np.random.Generator) -> None:
    for _ in range(170):
        x, y = rng.random(2) * width
        wide = width * rng.uniform(0.02, 0.07)
        tone = (222, 240, 248, 150) if rng.random() < 0.6 else (60, 120, 160, 120)
        box = (x - wide, y - wide * 0.35, x + wide, y + wide * 0.35)
        draw.arc(box, 200, 340, fill=tone, width=max(1, width // 120))


def _night(draw: ImageDraw.ImageDraw, width: int, rng: np.random.Generator) -> None:
    for _ in range(24):
        x, y = rng.random(2) * width
        wide = width * rng.uniform(0.1, 0.3)
        draw.ellipse((x - wide, y - wide, x + wide, y + wide), fill=(58, 52, 110, 26))
    for _ in range(230):
        x, y = rng.random(2) * width
        r = width * 0.0011 * rng.uniform(1, 3.2)
        draw.ellipse((x - r, y - r, x + r, y + r), fill=(250, 246, 220, 220))


_PAINTERS = {
    "table": _table,
    "rug": _rug,
    "tiles": _tiles,
    "grass": _grass,
    "snow": _snow,
    "sand": _sand,
    "water": _water,
    "night": _night,
}
