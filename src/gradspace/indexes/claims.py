"""Claims, by which processes and machines make each file once, even if one of them is lost.

A claim is a hidden file beside the one to be made. Its holder touches it every few seconds. It is
taken over when its process is gone from this machine, or when nobody has touched it for a while.
If a machine was only paused, two may make the same file: its content must not depend on the maker,
and it must appear atomically.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

BEAT = 10.0
"""Seconds between two touches."""
STALE = 60.0
"""Seconds without a touch after which a claim counts as given up."""


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Claim the file at `path`; yield whether this process may make it now."""
    claim = path.with_name(f".{path.name}.claim")
    if not (_take(claim) or _take_over(claim)):
        yield False
        return
    done = threading.Event()
    beating = threading.Thread(target=_beat, args=(claim, done), daemon=True)
    beating.start()
    try:
        yield True
    finally:
        done.set()
        beating.join()
        if _read(claim) == _owner():
            claim.unlink(missing_ok=True)


def _take(claim: Path) -> bool:
    try:
        descriptor = os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(_owner())
    return True


def _take_over(claim: Path) -> bool:
    """Take a claim that was given up; only one of several processes can move it away."""
    owner = _read(claim)
    if owner is None or not _is_given_up(claim, owner):
        return False
    moved = claim.with_name(f"{claim.name}.{secrets.token_hex(4)}")
    try:
        os.rename(claim, moved)
    except FileNotFoundError:
        return False
    if _read(moved) != owner:  # another process was faster, and this is its new claim
        os.rename(moved, claim)
        return False
    moved.unlink()
    return _take(claim)


def _is_given_up(claim: Path, owner: str) -> bool:
    with suppress(json.JSONDecodeError, KeyError, TypeError):
        told = json.loads(owner)
        if told["machine"] == _machine() and not _is_running(int(told["pid"])):
            return True
    with (
        suppress(FileNotFoundError),
        tempfile.NamedTemporaryFile(dir=claim.parent, prefix=".clock.") as now,
    ):  # by the clock of the file system, which is the same for all machines
        return os.fstat(now.fileno()).st_mtime - claim.stat().st_mtime > STALE
    return False


def _beat(claim: Path, done: threading.Event) -> None:
    while not done.wait(BEAT):
        with suppress(OSError):
            os.utime(claim)


def _read(claim: Path) -> str | None:
    try:
        return claim.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def _owner() -> str:
    return json.dumps({"machine": _machine(), "pid": os.getpid()})


def _machine() -> str:
    """Identify the scope within which a process id is unique."""
    facts = [socket.gethostname()]
    with suppress(OSError):
        facts += [Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()]
        facts += [str(os.stat("/proc/self/ns/pid").st_ino)]
    return " ".join(facts)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
