"""How much a server takes on, so that no request can use it up."""

from __future__ import annotations

from dataclasses import dataclass

MOST_RESULTS = 200
MOST_CHARACTERS = 1000
"""Of a sentence, a key or a condition."""
MOST_CONDITIONS = 8


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Defaults for one machine that serves a team."""

    body_bytes: int = 20 * 2**20
    picture_pixels: int = 50_000_000
    """Of a picture to search with; looked at before it is decoded."""
    pictures_at_once: int = 8
    """Decoded and not yet searched with: what bounds the memory that pictures take."""
    seconds: float = 10.0
    """From the moment a request was read to its answer."""
    queue: int = 512
    """Requests that wait for the model of an index."""
    batch: int = 64
    batch_wait: float = 0.003
    """Seconds that the first request of a batch waits for others."""
