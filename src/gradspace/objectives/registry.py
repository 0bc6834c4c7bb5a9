"""Registries of objectives: a loss is a decorated class, a weight a decorated function.

Every registered triplet weight T joins every registered pair weight P, as the GOAL objective "T/P".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gradspace.objectives.contract import Objective
from gradspace.objectives.relative import Relative
from gradspace.parameters import parameters_of
from gradspace.plugins import admit

T = TypeVar("T", bound=Callable[..., Any])


@dataclass(frozen=True)
class Registered(Generic[T]):
    """A registered class or function, and the publication it comes from."""

    name: str
    build: T
    source: str
    relative: type[Relative] | None = None

    @property
    def summary(self) -> str:
        return (self.build.__doc__ or "").strip().partition("\n")[0]

    @property
    def parts(self) -> list[Callable[..., Any]]:
        """Functions and classes whose parameters together are those of this entry."""
        return [self.build, *([self.relative] if self.relative else [])]


LOSSES: dict[str, Registered[type[Objective]]] = {}
TRIPLET_WEIGHTS: dict[str, Registered[Callable[..., Any]]] = {}
PAIR_WEIGHTS: dict[str, Registered[Callable[..., Any]]] = {}


def loss(name: str, *, source: str) -> Callable[[type[Objective]], type[Objective]]:
    """Register an `Objective` class (a frozen dataclass) under `name`."""

    def register(build: type[Objective]) -> type[Objective]:
        build.name = name
        return _add(LOSSES, Registered(name, build, source), joins={})

    return register


def triplet_weight(name: str, *, source: str) -> Callable[[T], T]:
    """Register `weight(p, n, *, parameters) -> T`, from positive and hardest negative scores."""
    return lambda build: _add(TRIPLET_WEIGHTS, Registered(name, build, source), joins=PAIR_WEIGHTS)


def pair_weight(
    name: str, *, source: str, relative: type[Relative] | None = None
) -> Callable[[T], T]:
    """Register `weight(p, n, *, parameters) -> (P+, P-)`.

    With a `relative` kind the function is called as `weight(p, n, m_positive, m_negative, ...)`.
    """
    return lambda build: _add(
        PAIR_WEIGHTS, Registered(name, build, source, relative), joins=TRIPLET_WEIGHTS
    )


def _add(
    registry: dict[str, Registered[Any]],
    entry: Registered[T],
    *,
    joins: Mapping[str, Registered[Any]],
) -> T:
    taken = registry.get(entry.name)
    admit(entry.name, entry.build, taken.build if taken else None)
    if "/" in entry.name:
        raise ValueError(
            f"{entry.name!r} contains a /, which separates the names of two weights: leave it out"
        )
    if not entry.summary:
        raise ValueError(f"{entry.name!r} needs a docstring: its first line is shown to users")
    for other in joins.values():
        _check_parameters(entry, other)
    registry[entry.name] = entry
    return entry.build


def _check_parameters(one: Registered[Any], other: Registered[Any]) -> None:
    """Reject weights that share a parameter's name but not its default: it is one parameter."""
    own, its = (parameters_of(*entry.parts) for entry in (one, other))
    for name in own.keys() & its.keys():
        (_, default), (_, others) = own[name], its[name]
        if default != others:
            raise ValueError(
                f"the parameter {name!r} of {one.name!r} is {default!r} by default, but that of "
                f"{other.name!r}, which it joins, is {others!r}: choose another name"
            )
