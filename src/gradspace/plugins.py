"""Importing of users' code that registers weights, losses, models and readers.

Importing runs code. So code is imported only if the user names it (`--import my_weights.py`) or has
installed it (an entry point of the group `gradspace.plugins`). A run records what it was trained
with, but that is never imported automatically: the folder may come from a stranger.
"""

from __future__ import annotations

import functools
import importlib
import json
import shlex
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

GROUP = "gradspace.plugins"
MAIN = ("__main__", "__mp_main__")
"""Modules of the program itself, which its child processes import anyway."""

_importing: list[str] = []
"""Files or modules named by the user that are being imported."""
_homes: dict[str, str] = {}
"""File or module name to import, for each module that registered something."""
_named: dict[str, None] = {}
"""Imports that the user named, in their order."""
_broken: dict[EntryPoint, str] = {}


def admit(name: str, build: Callable[..., Any], taken: Callable[..., Any] | None) -> None:
    """Admit `build` under a name, unless that is taken, and remember where it comes from."""
    if taken is not None:
        raise ValueError(
            f"{name!r} is already registered, by {taken.__module__}.{taken.__qualname__}: choose "
            "another name"
        )
    module = build.__module__
    if module.partition(".")[0] != "gradspace":
        _homes.setdefault(module, _importing[0] if _importing else _home(module))


def imported(*, by_workers: bool = False) -> list[str]:
    """List what to import to know the same names, or only what child processes must import."""
    homes = (home for module, home in _homes.items() if not (by_workers and module in MAIN))
    return list(dict.fromkeys(home for home in homes if home))


def named() -> list[str]:
    """List what the user named with `--import`, for commands that need the same names."""
    return list(_named)


def import_plugin(given: str) -> None:
    """Import a user's file, or a module by name, which registers what it defines.

    The file's folder, or the current one, is appended to the search path, so that a file can import
    its neighbours without hiding installed modules.
    """
    path = Path(given).expanduser()
    is_file = path.suffix == ".py" or len(path.parts) > 1 or path.is_dir()
    if is_file and not path.is_file():
        what = "is a folder: give a file" if path.is_dir() else "does not exist"
        raise ValueError(f"--import {given}: {path.absolute()} {what}")
    folder, name = (path.absolute().parent, path.stem) if is_file else (Path.cwd(), given)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    importlib.invalidate_caches()
    _importing.append(given)
    try:
        if is_file:
            _check_name(path, name)
        importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ValueError(f"--import {given}: {_reason(error, name)}") from error
    finally:
        _importing.pop()
    _named[given] = None


def load_installed() -> None:
    """Import the plug-ins of installed packages; called when a name is not known without them."""
    for entry in _installed():
        if entry in _broken:
            raise ValueError(_broken[entry])
        try:
            entry.load()
        except (Exception, SystemExit) as error:
            package = entry.dist.name if entry.dist else entry.module
            _broken[entry] = (
                f"the plug-in {entry.name!r} of the installed package {package} cannot be "
                f"imported: {_reason(error, entry.module)}; repair or uninstall that package"
            )
            raise ValueError(_broken[entry]) from error


def not_repeated(folder: Path) -> str:
    """Return the end of a sentence on missing imports that a run was trained with, if any."""
    try:
        recorded = json.loads((folder / "environment.json").read_text(encoding="utf-8"))["imports"]
    except (OSError, ValueError, LookupError, TypeError):
        return ""
    known = {*_homes, *map(_module, _homes.values())}
    names = [one for one in recorded if isinstance(one, str)] if isinstance(recorded, list) else []
    missing = [_printable(one) for one in names if _module(one) not in known]
    if not missing:
        return ""
    return (
        f" (it was trained with --import {' --import '.join(missing)}, and code is never imported "
        "automatically: read it, then give the option again)"
    )


@functools.cache
def _installed() -> list[EntryPoint]:
    return sorted(entry_points(group=GROUP))


def _home(module: str) -> str:
    """Find what imports a module again; nothing for code typed in an interactive session."""
    if module not in MAIN:
        return module
    return getattr(sys.modules.get(module), "__file__", None) or ""


def _module(given: str) -> str:
    return Path(given).stem if given.endswith(".py") else given


def _check_name(path: Path, name: str) -> None:
    """Check that importing a file's name finds the file, and not another module of that name."""
    spec = find_spec(name) if name.isidentifier() else None
    if spec is None:
        raise ValueError(f"{name!r} is not a valid module name: give the file another name")
    if spec.origin is None or not Path(spec.origin).exists() or not path.samefile(spec.origin):
        raise ValueError(f"another module is also called {name!r}: give the file another name")


def _reason(error: BaseException, name: str) -> str:
    """Describe what went wrong, and in which line of the user's code."""
    if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
        return f"there is no module {error.name}; give a file with its ending .py"
    if isinstance(error, SyntaxError):
        return f"{error.msg} ({Path(error.filename or name).name}, line {error.lineno})"
    if isinstance(error, SystemExit):
        return 'it exits the program: put what a script does under if __name__ == "__main__"'
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return f"{kind}{error}{_place(error)}"


def _place(error: BaseException) -> str:
    """Locate the line of the user's code, between Python's import machinery and what it calls."""
    skipped = (str(Path(__file__).parent), str(Path(importlib.__file__).parent), "<frozen")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(skipped)]
    if not own:
        return ""
    near = [frame for frame in own if Path(frame.filename).parent == Path(own[0].filename).parent]
    return f" ({Path(near[-1].filename).name}, line {near[-1].lineno})"


def _printable(text: str) -> str:
    """Quote for a shell, and escape what a terminal would obey: the text may be a stranger's."""
    return shlex.quote(text) if text.isprintable() else ascii(text)
