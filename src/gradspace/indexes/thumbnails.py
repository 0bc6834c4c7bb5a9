"""Thumbnails of the images of an index, each in a separate file."""

from __future__ import annotations

import io
import os
from hashlib import blake2b
from pathlib import Path

from PIL import Image

SIDE, QUALITY = 320, 80


def small(picture: Image.Image) -> bytes:
    """Make a JPEG that fits into a square of 320 pixels."""
    copy = picture.copy()
    copy.thumbnail((SIDE, SIDE), reducing_gap=2.0)
    file = io.BytesIO()
    copy.save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


class Thumbnails:
    """Thumbnail files by image key; they can be made again, and need not survive a crash."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, key: str) -> bytes | None:
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, key: str, picture: bytes) -> None:
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(picture)
        os.replace(part, path)

    def remove(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        name = blake2b(key.encode(), digest_size=16).hexdigest()
        return self.folder / name[:2] / f"{name}.jpg"
