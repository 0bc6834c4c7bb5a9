"""Provenance of the runs: commands, versions, and recipes without repetition."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from gradspace.comparison.entries import Entry, Group
from gradspace.runs.toml_files import read_toml

Flat = dict[tuple[str, ...], Any]
"""Values by the keys of nested tables."""


@dataclass(frozen=True)
class Recipes:
    """Recipes of the runs of one dataset and model."""

    shared: str
    """TOML of what all have in common."""
    own: dict[str, str]
    """TOML of the rest by objective, without seeds."""


@dataclass(frozen=True)
class Provenance:
    """Commands, versions and machines of runs."""

    commands: list[str]
    facts: list[tuple[str, str]]
    """Versions and machine of the first run."""
    differ: int
    """Number of runs with other versions or on another machine."""


def provenance(entries: Sequence[Entry]) -> Provenance:
    """Collect the runs' environment.json files, skipping missing ones."""
    found = [_environment(entry) for entry in entries]
    known = [environment for environment in found if environment]
    commands = [_command(environment) for environment in known]
    facts = [_facts(environment) for environment in known]
    return Provenance(
        commands=[command for command in dict.fromkeys(commands) if command],
        facts=facts[0] if facts else [],
        differ=sum(other != facts[0] for other in facts),
    )


def recipes_of(group: Group) -> Recipes:
    """Split a group's recipes into what they share and what is specific to each objective."""
    flat = {
        objective: _flat(read_toml(seeds[0].run.recipe_file)) for objective, seeds in group.items()
    }
    for recipe in flat.values():
        recipe.pop(("seed",), None)
    first = next(iter(flat.values()))
    shared = {
        key: value
        for key, value in first.items()
        if all(key in other and other[key] == value for other in flat.values())
    }
    own = {
        objective: {key: value for key, value in recipe.items() if key not in shared}
        for objective, recipe in flat.items()
    }
    return Recipes(_toml(shared), {objective: _toml(rest) for objective, rest in own.items()})


def _environment(entry: Entry) -> Mapping[str, Any]:
    try:
        text = (entry.run.folder / "environment.json").read_text(encoding="utf-8")
        environment: Mapping[str, Any] = json.loads(text)
    except (OSError, ValueError):
        return {}
    return environment


def _command(environment: Mapping[str, Any]) -> str:
    """Format the command line, without the program's folder."""
    words = [str(word) for word in environment.get("command") or ()]
    if not words:
        return ""
    program = Path(words[0]).name
    known = ["python", "-m", "gradspace"] if program == "__main__.py" else [program]
    return shlex.join([*known, *words[1:]])


def _facts(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [(name, str(version)) for name, version in environment.get("versions", {}).items()]
    if environment.get("commit"):
        facts.append(("commit", str(environment["commit"])[:12]))
    facts.append(("platform", str(environment.get("platform", "unknown"))))
    facts.append(("GPUs", ", ".join(environment.get("gpus") or ()) or "none"))
    return facts


def _flat(tables: Mapping[str, Any], above: tuple[str, ...] = ()) -> Flat:
    found: Flat = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            found |= _flat(value, (*above, key))
        else:
            found[*above, key] = value
    return found


def _toml(flat: Flat) -> str:
    tables: dict[str, Any] = {}
    for (*above, key), value in flat.items():
        table = tables
        for name in above:
            table = table.setdefault(name, {})
        table[key] = value
    return tomli_w.dumps(tables).strip()
