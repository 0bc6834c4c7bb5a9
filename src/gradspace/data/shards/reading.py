"""Bytes, captions and pictures of samples, read in place from tar shards."""

from __future__ import annotations

import io
import json
import os
import warnings
from pathlib import Path
from typing import Any

from PIL import Image, UnidentifiedImageError

from gradspace.data.image_files import decode
from gradspace.data.shards.index import CAPTIONS, LostShard, ShardIndex

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
"""Of pictures, whatever their names say: for others, as EPS, Pillow starts a program."""
MOST_OPEN = 64
"""Shards that a process holds open."""
MOST_CAPTION_BYTES = 2**20
MOST_PICTURE_BYTES = 2**28
CAPTION_FIELDS = ("captions", "caption", "sentences", "text")
"""Of a .json; a sentence may also be an object with one of SENTENCE_FIELDS."""
SENTENCE_FIELDS = ("raw", "caption", "text")


class UnusableSample(Exception):  # noqa: N818
    """One sample cannot be used; whoever reads many goes on without it."""


class _OpenShard:
    """A file that is closed when nobody reads it any more."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY)
        self.num_bytes = os.fstat(self.descriptor).st_size

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


class ShardFiles:
    """Reads pieces of shards; safe to use from threads and forked workers.

    Reading at a place moves no position, so forked processes may share what is open.
    """

    def __init__(self) -> None:
        self._open: dict[Path, _OpenShard] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_open": {}}

    def read(self, path: Path, num_bytes: int, start: int, size: int) -> bytes:
        """`size` bytes from `start` of a shard that has `num_bytes` in all."""
        try:
            shard = self._open.get(path) or self._opened(path)
            data = os.pread(shard.descriptor, size, start)
        except OSError as error:
            raise LostShard(f"the shard {path} cannot be read: {error.strerror}") from None
        if shard.num_bytes != num_bytes or len(data) < size:
            raise LostShard(f"the shard {path} has changed while it was in use")
        return data

    def _opened(self, path: Path) -> _OpenShard:
        if len(self._open) >= MOST_OPEN:
            self._open.clear()
        shard = self._open[path] = _OpenShard(path)
        return shard


def read_captions(files: ShardFiles, shard: ShardIndex, number: int) -> list[str]:
    """The captions of a sample; none of them is empty, and there is at least one."""
    _, _, start, size, kind = shard.places[number].tolist()
    if size > MOST_CAPTION_BYTES:
        raise UnusableSample(f"its captions have {size:,} bytes, more than {MOST_CAPTION_BYTES:,}")
    return parse_captions(files.read(shard.path, shard.num_bytes, start, size), CAPTIONS[kind])


def read_picture(files: ShardFiles, shard: ShardIndex, number: int) -> bytes:
    """The file of a sample's picture."""
    start, size, *_ = shard.places[number].tolist()
    if size > MOST_PICTURE_BYTES:
        raise UnusableSample(f"its picture has {size:,} bytes, more than {MOST_PICTURE_BYTES:,}")
    return files.read(shard.path, shard.num_bytes, start, size)


def decode_picture(data: bytes) -> Image.Image:
    """The picture in a file's bytes, as RGB."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            return decode(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:  # whose words have an address in them
        raise UnusableSample("its picture is of no known format") from None
    except Exception as error:  # a damaged file can make a decoder raise anything
        raise UnusableSample(f"its picture is broken: {error}") from None


def parse_captions(data: bytes, kind: str) -> list[str]:
    """The captions in a .txt, one a line, or in a .json."""
    try:
        text = data.decode("utf-8-sig")
        found = text.split("\n") if kind == "txt" else captions_in(json.loads(text))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise UnusableSample(f"its .{kind} cannot be read: {error}") from None
    captions = [caption.strip() for caption in found if caption.strip()]
    if not captions:
        raise UnusableSample(f"its .{kind} has no caption")
    return captions


def captions_in(value: Any) -> list[str]:
    """The texts in a value: one, a list of them, of sentences, or an object with a usual field."""
    if isinstance(value, dict):
        fields = (value[name] for name in CAPTION_FIELDS if value.get(name))
        value = next(fields, None)
    listed = value if isinstance(value, list) else [value]
    return [caption for entry in listed if (caption := _sentence(entry))]


def _sentence(entry: Any) -> str:
    if isinstance(entry, dict):
        entry = next((entry[name] for name in SENTENCE_FIELDS if name in entry), None)
    return entry if isinstance(entry, str) else ""
