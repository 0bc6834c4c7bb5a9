"""Comparisons included in gradspace, found by name: `icr-table1`, `flickr8k/goal`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gradspace.parameters import suggestion
from gradspace.runs.toml_files import read_toml

FOLDER = Path(__file__).parents[1] / "recipes"


@dataclass(frozen=True)
class BuiltIn:
    """A comparison of the package; its name may be given instead of a path."""

    name: str
    title: str


def list_builtin() -> list[BuiltIn]:
    """List every built-in comparison, by name."""
    return [BuiltIn(name, str(read_toml(path)["title"])) for name, path in _files().items()]


def find_comparison(given: str | Path) -> Path:
    """Find the file of a comparison: `given` if that exists, else the built-in one of that name."""
    path = Path(given)
    found = path if path.is_file() else builtin_file(path.as_posix())
    if found is None and not path.exists():
        meant = path.as_posix().removeprefix("recipes/").removesuffix(".toml")
        nearest = suggestion(meant, _files(), "the built-in ones are")
        raise ValueError(f"there is no comparison {given}, neither a file nor built in; {nearest}")
    return found or path


def builtin_file(name: str) -> Path | None:
    """Return the file of the built-in comparison of that name, if there is one."""
    return _files().get(name)


def _files() -> dict[str, Path]:
    paths = sorted(FOLDER.rglob("*.toml"))
    return {path.relative_to(FOLDER).with_suffix("").as_posix(): path for path in paths}
