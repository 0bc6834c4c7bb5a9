"""Commands to print for the user, which work exactly as printed."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from gradspace.plugins import named

EXAMPLE_MODEL = "openai/clip-vit-base-patch32"
"""Model for users' own pictures, without any training."""


def command(*arguments: str | Path) -> str:
    """Format a command of this gradspace installation with the user's plug-ins, for a shell.

    Examples:
        >>> command("serve", "my photos").rpartition("gradspace ")[2]
        "serve 'my photos'"
    """
    plugins = [part for plugin in named() for part in ("--import", plugin)]
    return f"{program()} {shlex.join([*map(str, arguments), *plugins])}"


def program() -> str:
    """Format the program of this gradspace installation, for a shell."""
    return shlex.join(_program())


def pip_install(package: str) -> str:
    """Format the installation of a package, or of `gradspace[extra]`, beside this gradspace.

    Examples:
        >>> pip_install("gradspace[serve]").rpartition("pip ")[2]
        "install 'gradspace[serve]'"
    """
    return shlex.join([*_pip(), "install", package])


def _pip() -> list[str]:
    """Program to call: `pip` if that is of this Python's environment, else `python -m pip`."""
    python = Path(sys.executable)
    found = shutil.which("pip")
    if found is not None and Path(found).parent.resolve() == python.parent.resolve():
        return ["pip"]
    place = os.path.relpath(python)
    return [str(python) if place.startswith(os.pardir) else place, "-m", "pip"]


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
