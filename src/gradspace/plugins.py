"""Weights, losses, models and readers in code of users: who imports it, and when.

Importing runs code. So it is imported only where the user names it (`--import my_weights.py`) or
has installed it (an entry point of the group `gradspace.plugins`). A run says what it was trained
with, and never has that imported: its folder may come from a stranger.
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
"""The program itself, which processes that it starts import by themselves."""

_importing: list[str] = []
"""What the user has named and is being imported."""
_homes: dict[str, str] = {}
"""Module that has registered something -> what imports it: a file, or the name of a module."""
_named: dict[str, None] = {}
"""What the user has named and was imported, in its order."""
_broken: dict[EntryPoint, str] = {}


def admit(name: str, build: Callable[..., Any], taken: Callable[..., Any] | None) -> None:
    """Let `build` be registered under a name, unless that is taken; remember where it is from."""
    if taken is not None:
        raise ValueError(
            f"{name!r} is registered already, by {taken.__module__}.{taken.__qualname__}: choose "
            "another name"
        )
    module = build.__module__
    if module.partition(".")[0] != "gradspace":
        _homes.setdefault(module, _importing[0] if _importing else _home(module))


def imported(*, by_workers: bool = False) -> list[str]:
    """What has to be imported to know the same names; or what a process that is started has to."""
    homes = (home for module, home in _homes.items() if not (by_workers and module in MAIN))
    return list(dict.fromkeys(home for home in homes if home))


def named() -> list[str]:
    """What the user has named with `--import`, for commands that are to know the same names."""
    return list(_named)


def import_plugin(given: str) -> None:
    """Import a user's file, or a module by its name, which registers what it has.

    The file's folder, or the current one, is searched after everything else, so that a file can
    import its neighbours and hides nothing that is installed.
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
    """Import what installed packages offer; called where a name is not known without it."""
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
    """The end of a sentence: what a run was trained with and is not imported now; or nothing."""
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
        f" (it was trained with --import {' --import '.join(missing)}, and "
        "code is never imported unasked: read it, then give the option again)"
    )


@functools.cache
def _installed() -> list[EntryPoint]:
    return sorted(entry_points(group=GROUP))


def _home(module: str) -> str:
    """What imports a module again; nothing for what was typed in a session."""
    if module not in MAIN:
        return module
    return getattr(sys.modules.get(module), "__file__", None) or ""


def _module(given: str) -> str:
    return Path(given).stem if given.endswith(".py") else given


def _check_name(path: Path, name: str) -> None:
    """The name of a file has to lead to it: another module of that name would come instead."""
    spec = find_spec(name) if name.isidentifier() else None
    if spec is None:
        raise ValueError(f"{name!r} is no name of a module: give the file another name")
    if spec.origin is None or not Path(spec.origin).exists() or not path.samefile(spec.origin):
        raise ValueError(f"another module is called {name!r} too: give the file another name")


def _reason(error: BaseException, name: str) -> str:
    """What went wrong, and in which line of the user's code."""
    if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
        return f"there is no module {error.name}; a file is given with its ending .py"
    if isinstance(error, SyntaxError):
        return f"{error.msg} ({Path(error.filename or name).name}, line {error.lineno})"
    if isinstance(error, SystemExit):
        return 'it ends the program: keep what a script does below if __name__ == "__main__"'
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return f"{kind}{error}{_place(error)}"


def _place(error: BaseException) -> str:
    """The line of the user's code, which is between Python's importing and what it calls."""
    skipped = (str(Path(__file__).parent), str(Path(importlib.__file__).parent), "<frozen")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(skipped)]
    if not own:
        return ""
    near = [frame for frame in own if Path(frame.filename).parent == Path(own[0].filename).parent]
    return f" ({Path(near[-1].filename).name}, line {near[-1].lineno})"


def _printable(text: str) -> str:
    """As a shell takes it, without what a terminal would obey: it may be a stranger's."""
    return shlex.quote(text) if text.isprintable() else ascii(text)
