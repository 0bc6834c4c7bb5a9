"""TOML files of recipes as nested tables, and changes to single keys of them."""

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
        raise ValueError(f"{path} is not a TOML file: {error}") from None


def apply_override(raw: dict[str, Any], override: str) -> None:
    """Apply `training.epochs=5`; the value is read as TOML where it can be, else as text."""
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
    """Set `training.epochs` in nested tables."""
    *tables, key = path.split(".")
    for table in tables:
        raw = raw.setdefault(table, {})
        if not isinstance(raw, dict):
            raise ValueError(f"{table} is not a table")
    raw[key] = value
