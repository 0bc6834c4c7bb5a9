"""TOML files of recipes as nested tables, and changes to single keys."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from gradspace.files import check_is_file


def read_toml(path: Path) -> dict[str, Any]:
    check_is_file(path, "a recipe, a TOML file")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a valid TOML file: {error}") from None


def apply_override(raw: dict[str, Any], override: str) -> None:
    """Apply an override such as `training.epochs=5`; values that are not TOML are text."""
    keys, equals, text = override.partition("=")
    if not equals:
        raise ValueError(f"--set takes table.key=value, got {override!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    try:
        set_key(raw, keys.strip(), value)
    except ValueError as error:
        raise ValueError(f"--set {override}: {error}") from None


def set_key(raw: dict[str, Any], path: str, value: Any) -> None:
    """Set a key such as `training.epochs` in nested tables."""
    *tables, key = path.split(".")
    for table in tables:
        raw = raw.setdefault(table, {})
        if not isinstance(raw, dict):
            raise ValueError(f"{table} is not a table")
    raw[key] = value
