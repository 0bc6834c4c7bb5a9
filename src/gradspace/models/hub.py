"""Whether the model hub answers, asked once and briefly before anything is downloaded."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

SECONDS = 5.0
"""Time that the hub has to answer in."""


def download_options(place: str) -> dict[str, Any]:
    """Return the options with which transformers loads a model from a folder or the hub.

    Without a network, transformers would ask the hub for half a minute before it looks in its
    cache.
    """
    return {"trust_remote_code": False, "local_files_only": not Path(place).is_dir() and _silent()}


@cache
def _silent() -> bool:
    """Whether no hub answers; any answer counts."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return True
    try:
        get_session().head(constants.ENDPOINT, timeout=SECONDS)
    except Exception:  # the errors of the hub's client have no common base
        return True
    return False
