"""Objectives by name; importing this package imports its modules, which register theirs."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

from gradspace.objectives.contract import Objective, Reduction
from gradspace.objectives.goal import Goal
from gradspace.objectives.registry import (
    LOSSES,
    PAIR_WEIGHTS,
    TRIPLET_WEIGHTS,
    loss,
    pair_weight,
    triplet_weight,
)
from gradspace.parameters import checked, parameters_of, suggestion
from gradspace.plugins import load_installed

__all__ = ["Objective", "list_objectives", "loss", "objective", "pair_weight", "triplet_weight"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


@dataclass(frozen=True)
class ObjectiveInfo:
    """Description of one objective, as listed by `gs.list_objectives()`."""

    name: str
    summary: str
    source: str
    parameters: dict[str, Any]
    reduction: Reduction
    """Published reduction of a batch, which determines the size of the gradient."""


def objective(name: str, **parameters: Any) -> Objective:
    """Build the objective of that name, checking its parameters.

    Examples:
        >>> objective("triplet-hard", margin=0.3)
        HardestTriplet(margin=0.3)
    """
    if not isinstance(name, str):
        raise ValueError(
            f"the name of an objective must be a string, got {name!r}; gs.list_objectives() "
            "lists the names"
        )
    if not _is_known(name):
        load_installed()
    if name in LOSSES:
        build = LOSSES[name].build
        return build(**checked(name, parameters_of(build), parameters))
    if not _is_known(name):
        known = [info.name for info in list_objectives()]
        raise ValueError(f"unknown objective {name!r}; {suggestion(name, known, 'there are')}")
    triplet, _, pair = name.partition("/")
    return _goal(triplet, pair, parameters)


def as_objective(given: Objective | str) -> Objective:
    """Return an objective unchanged, or build one by name with its defaults."""
    if isinstance(given, str):
        return objective(given)
    if not isinstance(given, Objective):
        raise ValueError(
            f"expected an objective or its name, got {given!r}; gs.list_objectives() lists the "
            "names"
        )
    return given


def list_objectives() -> tuple[ObjectiveInfo, ...]:
    """List all objectives with summary, paper, parameters and their defaults, and reduction.

    With their published reductions, gradients differ by four orders of magnitude
    (docs/explanation/concepts.md has a table). To swap objectives is thus to change the learning
    rate, except for optimisers such as Adam that ignore the size.
    `RetrievalLoss(reduction="mean")` makes them comparable.
    """
    load_installed()
    losses = [
        ObjectiveInfo(
            entry.name,
            entry.summary,
            entry.source,
            _defaults(entry.build),
            entry.build.reduction,
        )
        for entry in LOSSES.values()
    ]
    cells = [
        ObjectiveInfo(
            f"{t.name}/{p.name}",
            f"GOAL: triplet weight {t.name}, pair weight {p.name}",
            _joined(t.source, p.source),
            _defaults(*t.parts, *p.parts),
            Goal.reduction,
        )
        for t in TRIPLET_WEIGHTS.values()
        for p in PAIR_WEIGHTS.values()
    ]
    return (*sorted(losses, key=lambda info: info.name), *cells)


def _joined(*sources: str) -> str:
    first, second = sources
    both = first.startswith("GOAL ") and second.startswith("GOAL ")
    return f"{first} and {second.removeprefix('GOAL ') if both else second}"


class _CallableModule(ModuleType):
    """Keeps the old function `gs.objectives()`, now the name of this package, for one version."""

    def __call__(self) -> tuple[ObjectiveInfo, ...]:
        message = "gs.objectives() is now gs.list_objectives() and will be removed in version 0.3"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return list_objectives()


sys.modules[__name__].__class__ = _CallableModule


def _is_known(name: str) -> bool:
    triplet, _, pair = name.partition("/")
    return name in LOSSES or (triplet in TRIPLET_WEIGHTS and pair in PAIR_WEIGHTS)


def _goal(triplet: str, pair: str, given: dict[str, Any]) -> Goal:
    t, p = TRIPLET_WEIGHTS[triplet], PAIR_WEIGHTS[pair]
    values = checked(f"{triplet}/{pair}", parameters_of(*t.parts, *p.parts), given)

    def bind(part: Callable[..., Any]) -> Callable[..., Any]:
        return partial(part, **{name: values[name] for name in parameters_of(part)})

    relative = bind(p.relative)() if p.relative else None
    return Goal(f"{triplet}/{pair}", values, bind(t.build), bind(p.build), relative)


def _defaults(*parts: Callable[..., Any]) -> dict[str, Any]:
    return {name: default for name, (_, default) in parameters_of(*parts).items()}
