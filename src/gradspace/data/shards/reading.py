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
"""Formats of pictures, whatever their extension: for others, such as EPS, Pillow runs programs."""
MOST_OPEN = 64
"""Number of shards that a process keeps open."""
MOST_CAPTION_BYTES = 2**20
MOST_PICTURE_BYTES = 2**28
CAPTION_FIELDS = ("captions", "caption", "sentences", "text")
"""Fields of a .json; a sentence may also be an object with one of SENTENCE_FIELDS."""
SENTENCE_FIELDS = ("raw", "caption", "text")


class UnusableSample(Exception):  # noqa: N818
    """A single unusable sample, which readers of many may skip."""


class _OpenShard:
    """A file that is closed when its last reader is gone."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY)
        self.num_bytes = os.fstat(self.descriptor).st_size

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


class ShardFiles:
    """Reader of pieces of shards; safe to use from threads and forked workers.

    Reading at an offset moves no file position, so forked processes may share open files.
    """

    def __init__(self, most_open: int = MOST_OPEN) -> None:
        self.most_open = most_open
        self._open: dict[Path, _OpenShard] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_open": {}}

    def read(self, path: Path, num_bytes: int, start: int, size: int) -> bytes:
        """Read `size` bytes from `start` of a shard that should have `num_bytes` in all."""
        try:
            shard = self._open.get(path) or self._opened(path)
            data = os.pread(shard.descriptor, size, start)
        except OSError as error:
            raise LostShard(f"the shard {path} cannot be read: {error.strerror}") from None
        if shard.num_bytes != num_bytes or len(data) < size:
            raise LostShard(f"the shard {path} has changed while it was in use")
        return data

    def _opened(self, path: Path) -> _OpenShard:
        if len(self._open) >= self.most_open:
            self._open.clear()
        shard = self._open[path] = _OpenShard(path)
        return shard


def read_captions(files: ShardFiles, shard: ShardIndex, number: int) -> list[str]:
    """Read the captions of a sample: at least one, and none empty."""
    _, _, start, size, kind = shard.places[number].tolist()
    if size > MOST_CAPTION_BYTES:
        raise UnusableSample(f"its captions have {size:,} bytes, more than {MOST_CAPTION_BYTES:,}")
    return parse_captions(files.read(shard.path, shard.num_bytes, start, size), CAPTIONS[kind])


def read_picture(files: ShardFiles, shard: ShardIndex, number: int) -> bytes:
    """Read the encoded picture of a sample."""
    start, size, *_ = shard.places[number].tolist()
    if size > MOST_PICTURE_BYTES:
        raise UnusableSample(f"its picture has {size:,} bytes, more than {MOST_PICTURE_BYTES:,}")
    return files.read(shard.path, shard.num_bytes, start, size)


def decode_picture(data: bytes) -> Image.Image:
    """Decode the bytes of a picture as RGB."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            return decode(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:  # its message contains an address
        raise UnusableSample("its picture is not in a known format") from None
    except Exception as error:  # a damaged file can make a decoder raise anything
        raise UnusableSample(f"its picture is broken: {error}") from None


def parse_captions(data: bytes, kind: str) -> list[str]:
    """Parse the captions in a .txt, one per line, or in a .json."""
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
    """Collect the texts in a value: a text, a list of texts or sentences, or an object with one."""
    if isinstance(value, dict):
        fields = (value[name] for name in CAPTION_FIELDS if value.get(name))
        value = next(fields, None)
    listed = value if isinstance(value, list) else [value]
    return [caption for entry in listed if (caption := _sentence(entry))]


def _sentence(entry: Any) -> str:
    if isinstance(entry, dict):
        entry = next((entry[name] for name in SENTENCE_FIELDS if name in entry), None)
    return entry if isinstance(entry, str) else ""
