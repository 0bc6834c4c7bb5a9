"""Pictures that come in, checked before they are decoded, and pictures that go out, as JPEG."""

from __future__ import annotations

import io
from typing import IO

from PIL import Image, UnidentifiedImageError

from gradspace.data.image_files import TooManyPixels, decode

CONTENT_TYPES = {
    "image/avif": "AVIF",
    "image/bmp": "BMP",
    "image/gif": "GIF",
    "image/jpeg": "JPEG",
    "image/png": "PNG",
    "image/webp": "WEBP",
}
UNTOLD = ("", "application/octet-stream")
"""What senders say of a file that they know nothing about."""
LONGEST_SIDE = 1600


class UnknownFormat(ValueError):  # noqa: N818
    """A file that is no picture, or one of another kind."""


def read_picture(file: IO[bytes], most_pixels: int) -> Image.Image:
    """As RGB; the first frame, where there are several."""
    formats = tuple(CONTENT_TYPES.values())
    try:
        return decode(file, formats=formats, most_pixels=most_pixels)
    except (TooManyPixels, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise TooManyPixels(
            f"the picture has more than the {most_pixels:,} pixels that are read: send a smaller "
            "one"
        ) from error
    except UnidentifiedImageError as error:
        known = ", ".join(sorted(formats))
        raise UnknownFormat(f"the file is no picture of a known format: {known}") from error
    except Exception as error:  # a damaged file can make a decoder raise anything
        raise ValueError(f"the picture is broken: {error}") from error


def as_jpeg(image: Image.Image, longest: int = LONGEST_SIDE) -> bytes:
    """Written anew, so that nothing else of a file goes out: no place, no camera, no comment."""
    copy = image.convert("RGB")
    copy.thumbnail((longest, longest))
    copy.info.clear()
    out = io.BytesIO()
    copy.save(out, "JPEG", quality=88)
    return out.getvalue()
