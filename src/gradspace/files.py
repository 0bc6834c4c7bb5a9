"""Atomic files, complete or absent: written next to their destination, then moved there."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from gradspace.wording import typed


def check_is_file(path: Path, expected: str) -> None:
    """Reject a path that does not exist or is a folder."""
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "does not exist"
        raise ValueError(f"{typed(path)} {found}: expected {expected}")


def check_is_folder(path: Path, expected: str) -> None:
    """Reject a path that does not exist or is a file."""
    if not path.is_dir():
        found = "is a file" if path.exists() else "does not exist"
        raise ValueError(f"{typed(path)} {found}: expected {expected}")


def check_out_file(path: Path) -> None:
    """Reject a path where no file can be written, before the work that produces it."""
    if path.is_dir():
        raise ValueError(f"{typed(path)} is a folder: give the name of a file")


def check_out_folder(folder: Path, what: str, own: tuple[str, ...] = ()) -> None:
    """Reject an output folder that holds other files.

    `own` are prefixes of names that may be in it; hidden files may be too.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{typed(folder)} is a file: choose a folder for {what} with --out")
    found = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    others = [name for name in found if not name.startswith((".", *own))]
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise ValueError(
            f"{typed(folder)} has other things in it, {typed(others[0])}{more}: choose a separate "
            f"folder for {what} with --out"
        )


@contextmanager
def write_atomically(path: str | Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a file for writing that appears at `path` only once all of it is on disk."""
    path = Path(path)
    check_out_file(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    encoding = None if "b" in mode else "utf-8"
    descriptor, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, mode, encoding=encoding) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(part, 0o666 & ~_umask())
        os.replace(part, path)
        _sync(path.parent)
    except BaseException as error:
        Path(part).unlink(missing_ok=True)  # it may have been moved before an interruption
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # the error of a full disk does not name the file
        raise


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let one process at a time make the file at `path`, while the others wait."""
    with open(path.with_name(f".{path.name}.lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released when the process ends, in whatever way
        try:
            yield
        finally:  # closing is not enough: a process forked meanwhile would go on holding it
            fcntl.flock(file, fcntl.LOCK_UN)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Let one process at a time write into a folder; a second one fails at once."""
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"another process is writing into {typed(folder)}: wait until it has finished"
            ) from error
        except OSError:
            pass  # a file system without locks
        yield


def link_or_copy(source: Path, target: Path) -> None:
    """Link a large file that never changes, or copy it if the file system cannot link."""
    part = target.with_name(f".{target.name}.part")
    part.unlink(missing_ok=True)
    try:
        os.link(source, part)
    except OSError:
        shutil.copyfile(source, part)
    os.replace(part, target)


def sync_folder(folder: Path) -> None:
    """Flush a new folder and all files in it to disk."""
    for path in (*folder.iterdir(), folder, folder.parent):
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
