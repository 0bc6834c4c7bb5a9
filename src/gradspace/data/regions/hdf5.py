"""HDF5 files with region features, in the usual layouts.

- a group per image with `features`, or datasets `<id>_features`: the ids are in the file;
- `image_features` or `features` as [images, boxes, width], or as [boxes, width] with the first and
  last box of every image in `pos_boxes`; the ids are in `image_ids` or `ids`, or in a text file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradspace.data.regions.source import Regions, library

ENDING = "_features"
ARRAYS = ("image_features", "features")
IDS = ("image_ids", "ids", "img_ids")


class Hdf5Regions:
    """Features in one HDF5 file; links to other files are not followed."""

    def __init__(self, path: Path, ids: Sequence[str] | None) -> None:
        self.path = path
        try:
            self._file = library("h5py").File(path, "r")
        except OSError as error:
            raise ValueError(f"{path} is not a complete HDF5 file: {error}") from None
        array = next((name for name in ARRAYS if name in self._file), None)
        self._array = self._dataset(array) if array else None
        self._boxes = None
        if self._array is None:
            self._names = self._by_image()
            self.ids: Sequence[str] = list(self._names)
            return
        if "pos_boxes" in self._file:
            self._boxes = np.asarray(self._dataset("pos_boxes")[()])
        self.ids = ids if ids is not None else self._stored_ids()
        number = len(self._array) if self._boxes is None else len(self._boxes)
        if len(self.ids) != number:
            raise ValueError(f"{path} has features of {number} images, and {len(self.ids)} ids")

    def load(self, place: int) -> Regions:
        if self._array is None:
            found = self._dataset(self._names[self.ids[place]])[()]
        elif self._boxes is None:
            found = self._array[place]
        else:
            start, end = self._boxes[place].tolist()
            found = self._array[start:end]
        return np.asarray(found)

    def _by_image(self) -> dict[str, str]:
        """Map every image to its dataset."""
        names = {}
        for name in self._file:
            if name.endswith(ENDING):
                names[name.removesuffix(ENDING)] = name
            elif self._link(name) and "features" in (self._file[name] or ()):
                names[name] = f"{name}/features"
        if not names:
            raise ValueError(
                f"{self.path} has {', '.join(list(self._file)[:5]) or 'nothing'}; expected a group "
                f"per image with features, <id>{ENDING}, or {' or '.join(ARRAYS)}"
            )
        return names

    def _stored_ids(self) -> list[str]:
        name = next((name for name in IDS if name in self._file), None)
        if name is None:
            raise ValueError(
                f"{self.path} does not name the images of its rows: give --ids, a text file with "
                "one image per line"
            )
        stored = self._dataset(name)[()].tolist()
        return [value.decode() if isinstance(value, bytes) else str(value) for value in stored]

    def _link(self, name: str) -> bool:
        """Whether a name is a group of this file, not a link to another one."""
        h5py = library("h5py")
        inside = not isinstance(self._file.get(name, getlink=True), h5py.ExternalLink)
        return inside and isinstance(self._file[name], h5py.Group)

    def _dataset(self, name: str) -> Any:
        h5py = library("h5py")
        group: Any = self._file
        for part in name.split("/"):
            if isinstance(group.get(part, getlink=True), h5py.ExternalLink):
                raise ValueError(f"{name} of {self.path} is in another file, which is not read")
            group = group[part]
        if not isinstance(group, h5py.Dataset) or group.external or group.is_virtual:
            raise ValueError(f"{name} of {self.path} is not an array that is stored in this file")
        return group
