"""Small pictures of a dataset's images, each embedded only once in the file."""

from __future__ import annotations

import base64
import io

from gradspace.data.dataset import Split

SIDE, QUALITY = 160, 80


class ReportThumbnails:
    """Pictures as data URIs by key, by which a page can show one any number of times."""

    def __init__(self) -> None:
        self.pictures: dict[str, str] = {}
        self._broken: set[str] = set()

    def add(self, dataset: str, split: Split, image: int) -> str | None:
        """Add an image and return its key; None if it has no readable picture."""
        key = f"{dataset}-{image}"
        if split.images is None or key in self._broken:
            return None
        if key not in self.pictures:
            try:
                self.pictures[key] = _data_uri(split, image)
            except (OSError, ValueError):
                self._broken.add(key)
                return None
        return key


def _data_uri(split: Split, image: int) -> str:
    assert split.images is not None
    picture = split.images.load(image).convert("RGB")
    picture.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=QUALITY, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
