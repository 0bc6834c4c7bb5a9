"""Commands to print for the user, which work exactly as printed."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from gradspace.plugins import named

EXAMPLE_MODEL = "openai/clip-vit-base-patch32"
"""Reads pictures of one's own without any training."""


def command(*arguments: str | Path) -> str:
    """Format a command of this gradspace installation with the user's plug-ins, for a shell.

    Examples:
        >>> command("serve", "my photos").rpartition("gradspace ")[2]
        "serve 'my photos'"
    """
    plugins = [part for plugin in named() for part in ("--import", plugin)]
    return shlex.join([*_program(), *map(str, arguments), *plugins])


def _program() -> list[str]:
    """Program to call: `gradspace` if that is found on the PATH, else `.venv/bin/gradspace`."""
    own = shutil.which("gradspace", path=str(Path(sys.executable).parent))
    if own is None:
        return [sys.executable, "-m", "gradspace"]
    found = shutil.which("gradspace")
    if found is not None and Path(found).resolve() == Path(own).resolve():
        return ["gradspace"]
    place = os.path.relpath(own)
    return [own if place.startswith(os.pardir) else place]
