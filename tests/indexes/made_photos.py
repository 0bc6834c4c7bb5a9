"""Photos that differ, in a folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def write_photos(folder: Path, numbers: range) -> None:
    """Half of them in a folder below."""
    (folder / "below").mkdir(parents=True, exist_ok=True)
    for number in numbers:
        place = folder / "below" if number % 2 else folder
        write_photo(place / f"{number:03}.png", number)


def write_photo(path: Path, number: int) -> None:
    """Another one for another number."""
    colours = np.random.default_rng(number).integers(256, size=(4, 4, 3), dtype=np.uint8)
    Image.fromarray(colours).resize((48, 40), Image.Resampling.NEAREST).save(path)
