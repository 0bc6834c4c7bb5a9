"""Incoming pictures, checked before they are decoded, and outgoing pictures, as JPEG."""

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
"""Content types of files whose kind the sender does not know."""
LONGEST_SIDE = 1600


class UnknownFormat(ValueError):  # noqa: N818
    """A file that is not a picture, or is in an unsupported format."""


def read_picture(file: IO[bytes], most_pixels: int) -> Image.Image:
    """Decode a picture as RGB; of an animation, the first frame."""
    formats = tuple(CONTENT_TYPES.values())
    try:
        return decode(file, formats=formats, most_pixels=most_pixels)
    except (TooManyPixels, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise TooManyPixels(
            f"the picture has more than {most_pixels:,} pixels: send a smaller one"
        ) from error
    except UnidentifiedImageError as error:
        known = ", ".join(sorted(formats))
        raise UnknownFormat(f"the file is not a picture in a known format: {known}") from error
    except Exception as error:  # a damaged file can make a decoder raise anything
        raise ValueError(f"the picture is broken: {error}") from error


def as_jpeg(image: Image.Image, longest: int = LONGEST_SIDE) -> bytes:
    """Re-encode a picture as JPEG, which drops location, camera and comments of its file."""
    copy = image.convert("RGB")
    copy.thumbnail((longest, longest))
    copy.info.clear()
    out = io.BytesIO()
    copy.save(out, "JPEG", quality=88)
    return out.getvalue()
