"""Contact sheet: pictures with their captions under them, for people to look at."""

import textwrap
from dataclasses import replace

from PIL import Image, ImageDraw, ImageFont

from gradspace.data.scenes.dataset import Scenes

CELL = 256
LINE = 15
BORDER = 12
LETTERS_PER_LINE = 44


def contact_sheet(scenes: Scenes, num: int = 12, columns: int = 4) -> Image.Image:
    """Draw the first `num` images, 256 pixels wide, with their captions under them."""
    if num < 1 or columns < 1:
        raise ValueError(f"num is {num} and columns is {columns}; use 1 or more for both")
    num = min(num, len(scenes))
    large = replace(scenes, image_size=CELL)
    texts = [_lines([caption.text for caption in scenes.captions(i)]) for i in range(num)]
    rows = [texts[start : start + columns] for start in range(0, num, columns)]
    heights = [CELL + LINE * max(map(len, row)) + 2 * BORDER for row in rows]
    width = min(num, columns) * (CELL + BORDER) + BORDER
    sheet = Image.new("RGB", (width, sum(heights) + BORDER), "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(size=11.5)
    for i, lines in enumerate(texts):
        left = BORDER + (i % columns) * (CELL + BORDER)
        top = BORDER + sum(heights[: i // columns])
        sheet.paste(large.image(i), (left, top))
        for k, line in enumerate(lines):
            draw.text((left, top + CELL + 5 + k * LINE), line, fill=(40, 40, 40), font=font)
    return sheet


def _lines(texts: list[str]) -> list[str]:
    """Wrap texts to the width of a cell, each beginning with a dash."""
    return [
        line
        for text in texts
        for line in textwrap.wrap(f"- {text}", LETTERS_PER_LINE, subsequent_indent="   ")
    ]
