"""Image files by name, in a folder or a zip, and the search for them beside their captions."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PureWindowsPath
from typing import IO, Any, Protocol

from PIL import Image, ImageOps

NAMES_TRIED = 100
"""Number of image names looked up to decide whether a folder or zip holds the images."""


class ImageStore(Protocol):
    """Files by name; picklable, and usable from threads and forked workers."""

    path: Path

    def __contains__(self, name: str) -> bool: ...

    def open(self, name: str) -> IO[bytes]: ...


@dataclass(frozen=True)
class StoredImages:
    """Images of a split, by their names in a store."""

    store: ImageStore
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.names)

    def missing(self, index: int) -> str:
        """Explain why an image does not exist, or return ""; does not read the file."""
        name = self.names[index]
        if leads_outside(name):
            return f"the name leads out of {self.store.path}"
        return "" if name in self.store else f"not in {self.store.path}"

    def load(self, index: int) -> Image.Image:
        missing = self.missing(index)
        if missing:
            raise ValueError(f"there is no image {self.names[index]!r}: {missing}")
        try:
            with self.store.open(self.names[index]) as file:
                return decode(file)
        except Exception as error:  # a damaged file can make a decoder raise anything
            raise ValueError(
                f"image {self.names[index]!r} in {self.store.path} is broken: {error}"
            ) from error


class TooManyPixels(ValueError):  # noqa: N818
    """A picture that is refused because it has too many pixels."""


def decode(
    file: IO[bytes], *, formats: tuple[str, ...] | None = None, most_pixels: int | None = None
) -> Image.Image:
    """Decode a picture completely, as RGB, and rotate it as its EXIF orientation says.

    A small file that claims to be a huge picture is refused before it is decoded.
    """
    most = Image.MAX_IMAGE_PIXELS if most_pixels is None else most_pixels
    with Image.open(file, formats=formats) as image:
        if most is not None and image.width * image.height > most:
            raise TooManyPixels(
                f"it has {image.width} x {image.height} pixels, more than the {most:,} of "
                "PIL.Image.MAX_IMAGE_PIXELS"
            )
        with suppress(Exception):  # cameras may write anything
            ImageOps.exif_transpose(image, in_place=True)
        opaque = "transparency" not in image.info  # Pillow wants palettes with it as RGBA
        if opaque and image.mode == "RGB":
            image.load()
            return image  # which convert would copy
        return (image if opaque else image.convert("RGBA")).convert("RGB")


@cache
def image_endings() -> frozenset[str]:
    """Return the endings of files that can be decoded, such as .jpg."""
    known = Image.registered_extensions().items()
    return frozenset(ending for ending, kind in known if kind in Image.OPEN)


class ImageFolder:
    """Image files in a folder; names use forward slashes and never lead out of the folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __contains__(self, name: str) -> bool:
        return not leads_outside(name) and (self.path / name).is_file()

    def open(self, name: str) -> IO[bytes]:
        return open(self.path / name, "rb")


class ImageZip:
    """Images in a zip, read in place; names may omit a folder that holds all of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with zipfile.ZipFile(path) as archive:
                members = archive.namelist()
        except (zipfile.BadZipFile, OSError) as error:
            raise ValueError(f"{path} is not a complete zip file: {error}") from error
        self._members = frozenset(
            m for m in members if not m.startswith("__MACOSX/") and not m.endswith("/")
        )
        tops = {member.partition("/")[0] for member in self._members}
        self._prefix = f"{tops.pop()}/" if len(tops) == 1 else ""
        self._opened: tuple[int, zipfile.ZipFile] | None = None

    def __contains__(self, name: str) -> bool:
        return self._member(name) in self._members

    def open(self, name: str) -> IO[bytes]:
        return self._archive().open(self._member(name))

    def _member(self, name: str) -> str:
        return name if name in self._members else self._prefix + name

    def _archive(self) -> zipfile.ZipFile:
        """Open the archive once per process: a shared one would share its file position."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), zipfile.ZipFile(self.path)
        return self._opened[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None}


def leads_outside(name: str) -> bool:
    """Whether a name could mean a file outside the folder it is looked up in, on any system."""
    path = PureWindowsPath(name)  # knows both kinds of slash, and drives
    return bool(path.anchor) or ".." in path.parts


def open_store(path: Path) -> ImageStore:
    """Open the image folder or zip that the user named."""
    if path.is_dir():
        return ImageFolder(path)
    if path.is_file():
        return ImageZip(path)
    raise ValueError(f"{path} does not exist: expected an image folder or zip")


def find_store(folder: Path, names: Sequence[str]) -> ImageStore | None:
    """Find a folder or zip in `folder`, or `folder` itself, with one of the first images."""
    return next((store for store in _candidates(folder) if holds_any(store, names)), None)


def holds_any(store: ImageStore, names: Sequence[str]) -> bool:
    """Whether a store has one of the first images."""
    return any(name in store for name in names[:NAMES_TRIED])


def _candidates(folder: Path) -> Iterator[ImageStore]:
    """Yield `images` first, then the folder itself, then the other entries by name."""
    yield ImageFolder(folder / "images")
    yield ImageFolder(folder)
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            yield ImageFolder(path)
        elif path.suffix == ".zip":
            yield ImageZip(path)
