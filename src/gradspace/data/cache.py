"""Cache folder for files that can be made again; entries are complete or absent."""

from __future__ import annotations

import errno
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

from gradspace.files import locked

STALE_SECONDS = 24 * 3600
"""Age in seconds from which a half-made folder counts as left by a process that was killed."""


class NoRoom(ValueError):  # noqa: N818
    """The cache cannot be written to; anything else is in order."""

    @classmethod
    def or_as_it_was(cls, error: OSError) -> Exception:
        """Explain an error if it is one of the disk that the cache is on."""
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            return error
        return cls(
            f"the cache in {cache_folder()} cannot be written: {error.strerror}; make room, or set "
            "GRADSPACE_CACHE to another folder"
        )


def cache_folder() -> Path:
    """Return `$GRADSPACE_CACHE`, or `~/.cache/gradspace`."""
    return Path(os.environ.get("GRADSPACE_CACHE") or Path.home() / ".cache" / "gradspace")


def place_of(what: str, *facts: Any) -> Path:
    """Return the place in the cache of what is made from these facts, such as a path and a size."""
    digest = blake2b(" ".join(map(str, facts)).encode(), digest_size=16).hexdigest()
    return cache_folder() / what / digest


@contextmanager
def locked_in_cache(place: Path) -> Iterator[None]:
    """Let one process at a time make something at a place in the cache."""
    with ExitStack() as stack:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(place))
        except OSError as error:
            raise NoRoom.or_as_it_was(error) from None
        yield


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return `folder`, filled by `make` if it does not exist yet.

    `make` fills a folder beside it, which is then renamed, so that `folder` is always complete. If
    several processes make it at once, the first one wins and the others use its result.
    """
    if folder.is_dir():
        return folder
    part = folder.parent / f".{folder.name}.{uuid.uuid4().hex}"
    try:
        part.mkdir(parents=True)
        _remove_stale(folder)
        make(part)
        part.rename(folder)
    except OSError as error:
        if not folder.is_dir():
            raise NoRoom.or_as_it_was(error) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def _remove_stale(folder: Path) -> None:
    for path in folder.parent.iterdir():
        ours = path.name.startswith(f".{folder.name}.")
        if ours and time.time() - path.stat().st_mtime > STALE_SECONDS:
            shutil.rmtree(path, ignore_errors=True)
