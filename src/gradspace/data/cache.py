"""Cache folder for files that can be made again; entries are complete or absent."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path

STALE_SECONDS = 24 * 3600
"""Age in seconds from which a half-made folder counts as left by a process that was killed."""


def cache_folder() -> Path:
    """Return `$GRADSPACE_CACHE`, or `~/.cache/gradspace`."""
    return Path(os.environ.get("GRADSPACE_CACHE") or Path.home() / ".cache" / "gradspace")


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return `folder`, filled by `make` if it does not exist yet.

    `make` fills a folder beside it, which is then renamed, so that `folder` is always complete. If
    several processes make it at once, the first one wins and the others use its result.
    """
    if folder.is_dir():
        return folder
    part = folder.parent / f".{folder.name}.{uuid.uuid4().hex}"
    part.mkdir(parents=True)
    _remove_stale(folder)
    try:
        make(part)
        part.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def _remove_stale(folder: Path) -> None:
    for path in folder.parent.iterdir():
        ours = path.name.startswith(f".{folder.name}.")
        if ours and time.time() - path.stat().st_mtime > STALE_SECONDS:
            shutil.rmtree(path, ignore_errors=True)
