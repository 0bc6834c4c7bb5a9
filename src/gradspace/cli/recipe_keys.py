"""Keys of a recipe, as `--set` takes them: for help, and for users who type them as options."""

from __future__ import annotations

import difflib
import shlex
import typing
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from gradspace.commands import program
from gradspace.comparison.recipe import PARTS
from gradspace.data.readers import READERS
from gradspace.models import models
from gradspace.objectives import list_objectives
from gradspace.objectives.registry import LOSSES, PAIR_WEIGHTS, TRIPLET_WEIGHTS
from gradspace.parameters import parameters_of
from gradspace.runs.recipe import Recipe

SETTERS = ("train", "compare")
"""Commands that take `--set`."""
AXES = ("dataset", "model", "objective", "seed")
"""Axes of a comparison, by which `--only` selects a part of it."""
SHORT = {"lr": "learning_rate"}
ALIKE, VERY_ALIKE = 0.75, 0.9

OBJECTIVES = (
    f"{', '.join(sorted(LOSSES))}, or TRIPLET/PAIR of {', '.join(TRIPLET_WEIGHTS)} and "
    f"{', '.join(PAIR_WEIGHTS)} (see `gradspace analyse objectives`)"
)
MODELS = ", ".join(info.name for info in models())


def describe_keys() -> str:
    """Describe every key of a recipe with its default, a paragraph for each table."""
    lines = ["Keys for --set TABLE.KEY=VALUE by table, and defaults where a model has none:"]
    for table, kind in _tables().items():
        keys = [
            key if field.default is None else f"{key}={_shown(field.default)}"
            for key, field in kind.model_fields.items()
        ]
        lines.append(f"[bold]{table}[/] {', '.join(keys)}{FURTHER.get(table, '')}")
    lines.append("The recipe.toml in the folder of a run lists all of its keys.")
    return "\n\n".join(lines)


FURTHER = {
    "data": "; and the options of its layout, such as num_train of scenes",
    "model": "; and the parameters of the model, such as width",
    "objective": "; and the parameters of the objective, such as margin",
}


def suggest(command: str, option: str, value: str | None, offered: bool) -> str | None:
    """Suggest what to type instead of an option that is a key of the recipe; None if it is not.

    `offered` says that a real option is similar: then only keys spelt almost the same are
    considered.
    """
    name = option.lstrip("-").replace("-", "_")
    if command == "compare" and name in AXES:
        label = shlex.quote(f"{name}={value or 'LABEL'}")
        return f"choose a part of the grid with --only {label}"
    key = _find(SHORT.get(name, name), VERY_ALIKE if offered else ALIKE)
    if key is None:
        return None
    path, kind = key
    change = shlex.quote(f"{path}={_value(kind, value)}")
    if command in SETTERS:
        return f"{path} is a key of the recipe: --set {change}"
    train = f"{program()} train --set {change}"
    return f"{path} is a key of the recipe, fixed for each run: {train}"


def _find(name: str, alike: float) -> tuple[str, Any] | None:
    """Find the dotted path and the type of the key of that name."""
    known: dict[str, tuple[str, Any]] = {}
    for path, kind in _paths():
        known.setdefault(path.rpartition(".")[2], (path, kind))
        known[path] = (path, kind)
    near = difflib.get_close_matches(name, known, n=1, cutoff=alike)
    return known[near[0]] if near else None


def _paths() -> Iterator[tuple[str, Any]]:
    """Yield every key with its type: keys of the tables, parameters, and options of readers."""
    for table, kind in _tables().items():
        yield from ((f"{table}.{n}", field.annotation) for n, field in kind.model_fields.items())
    yield from _parameters()
    for reader in READERS.values():
        known = parameters_of(reader.open)
        yield from ((f"data.{key}", of_type) for key, (of_type, _) in known.items())
    yield from ((key, Recipe.model_fields[key].annotation) for key in ("seed", "init"))


def _parameters() -> list[tuple[str, Any]]:
    """List parameters of objectives and models, those of most objectives or models first."""
    found = [
        *(
            (f"objective.{k}", type(v))
            for info in list_objectives()
            for k, v in info.parameters.items()
        ),
        *((f"model.{k}", of_type) for info in models() for k, (of_type, _) in info.known.items()),
    ]
    holders = Counter(path for path, _ in found)
    return sorted(found, key=lambda parameter: -holders[parameter[0]])


def _tables() -> dict[str, type[BaseModel]]:
    order = ("training", "objective", "model", "data", "finetune", "offline")
    assert set(order) == set(PARTS)
    return {table: _kind(Recipe.model_fields[table].annotation) for table in order}


def _kind(annotation: Any) -> type[BaseModel]:
    """Return the class of a table that may be omitted."""
    kinds = [kind for kind in (annotation, *typing.get_args(annotation)) if isinstance(kind, type)]
    return next(kind for kind in kinds if issubclass(kind, BaseModel))


def _value(kind: Any, value: str | None) -> str:
    if value is None:
        return "true" if kind is bool else "VALUE"
    is_list = typing.get_origin(kind) is tuple
    return f"[{value}]" if is_list and not value.startswith("[") else value


def _shown(default: Any) -> str:
    plain: Mapping[type, Any] = {bool: lambda v: str(v).lower(), tuple: list}
    return str(plain.get(type(default), str)(default))
