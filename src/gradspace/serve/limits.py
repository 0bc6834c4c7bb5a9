"""Limits of a server, so that no request can exhaust it."""

from __future__ import annotations

from dataclasses import dataclass

MOST_RESULTS = 200
MOST_CHARACTERS = 1000
"""Longest sentence, key or condition."""
MOST_CONDITIONS = 8


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Defaults for one machine that serves a team."""

    body_bytes: int = 20 * 2**20
    picture_pixels: int = 50_000_000
    """Largest picture to search by; checked before it is decoded."""
    pictures_at_once: int = 8
    """Number of decoded pictures waiting to be searched by, which bounds their memory."""
    seconds: float = 10.0
    """Longest time from reading a request to its answer."""
    queue: int = 512
    """Number of requests that may wait for the model of an index."""
    batch: int = 64
    batch_wait: float = 0.003
    """Seconds that the first request of a batch waits for others."""
