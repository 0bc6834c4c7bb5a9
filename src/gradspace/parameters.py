"""Types of parameters, and checks of those that users set by name, of objectives, models, data."""

from __future__ import annotations

import difflib
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

Real = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Positive = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0)]
NonNegative = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0)]
Flag = Annotated[bool, Field(strict=True)]
NONE = "none"
"""Spelling of None where there is no word for it, in TOML and on the command line."""


def parameters_of(*callables: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """Collect type and default, by name, of all parameters of functions or dataclasses.

    Only parameters with a default count; if that is a dataclass, its fields are the parameters.
    """
    found: dict[str, tuple[Any, Any]] = {}
    for function in callables:
        hints = typing.get_type_hints(function, include_extras=True)
        for name, default in _defaults(function).items():
            if _is_group(default):
                types = typing.get_type_hints(type(default), include_extras=True)
                for field in fields(default):
                    found.setdefault(field.name, (types[field.name], getattr(default, field.name)))
            else:
                found.setdefault(name, (hints.get(name, Any), default))
    return found


def arguments_of(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Build a function's arguments from the values of all its parameters by name."""
    return {
        name: replace(default, **{field.name: values[field.name] for field in fields(default)})
        if _is_group(default)
        else values[name]
        for name, default in _defaults(function).items()
    }


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is not parameter.empty
    }


def _is_group(default: Any) -> bool:
    """Whether a default is a dataclass, which groups several parameters."""
    return is_dataclass(default) and not isinstance(default, type)


def checked(
    owner: str, known: Mapping[str, tuple[Any, Any]], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Complete the given parameters, validated by type, with the defaults of all others."""
    for name in given.keys() - known.keys():
        raise ValueError(
            f"{owner} has no parameter {name!r}; {suggestion(name, known, 'it takes')}"
        )
    values = {name: default for name, (_, default) in known.items()}
    for name, value in given.items():
        kind = known[name][0]
        try:
            values[name] = TypeAdapter(kind).validate_python(_none_or(kind, value))
        except ValidationError as error:
            expected = error.errors()[0]["msg"].removeprefix("Input ")
            raise ValueError(f"{name} of {owner} {expected}, got {value!r}") from None
    return values


def _none_or(kind: Any, value: Any) -> Any:
    """Convert "none" to None if the parameter can be None."""
    return None if value == NONE and type(None) in typing.get_args(kind) else value


def suggestion(name: str, known: Iterable[str], otherwise: str) -> str:
    """Suggest the nearest known names, 'did you mean ...?', or list all of them."""
    known = sorted(known)
    nearest = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if nearest:
        return f"did you mean {' or '.join(map(repr, nearest))}?"
    return f"{otherwise} {', '.join(known) if known else 'none'}"
