"""JSON that users may have edited, read into dataclasses; errors name the place of a mistake."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from gradspace.files import check_is_file

T = TypeVar("T")


def read_json(path: Path, kind: type[T], what: str) -> T:
    """Read a file as a `kind`; keys that `kind` does not have are ignored."""
    check_is_file(path, what)
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(
            f"{path} is not {what}: {where}{': ' if where else ''}{first['msg']}"
        ) from None
