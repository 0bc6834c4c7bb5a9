"""Conditions on the metadata of items, as users write them: `year>=2020`, `folder=holiday`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradspace.parameters import suggestion

Value = str | int | float

COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "~": lambda whole, part: part.casefold() in whole.casefold(),
}
_PATTERN = re.compile(r"\s*([\w.-]+)\s*(!=|<=|>=|=|<|>|~)\s*(.*?)\s*", re.DOTALL)


@dataclass(frozen=True)
class Condition:
    """Comparison of `field` with `value`; `~` tests whether a text contains another, in any case.

    Numbers are compared as numbers, texts as texts, so that dates such as 2024-05-01 are in order.
    An item without the field meets no condition on it.
    """

    field: str
    comparison: str
    value: str

    @property
    def number(self) -> float | None:
        """Value as a number, if it is one; a number contains nothing."""
        try:
            return float(self.value) if self.comparison != "~" else None
        except ValueError:
            return None

    def is_met(self, metadata: Mapping[str, Value]) -> bool:
        found = metadata.get(self.field)
        if found is None:
            return False
        if isinstance(found, str):
            return COMPARISONS[self.comparison](found, self.value)
        return self.number is not None and COMPARISONS[self.comparison](found, self.number)

    def __str__(self) -> str:
        return f"{self.field}{self.comparison}{self.value}"


def parse_condition(text: str) -> Condition:
    """Parse `field=value`, with one of = != < <= > >= ~ as the comparison."""
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ValueError(
            f"a condition must be a field, one of {' '.join(COMPARISONS)}, and a value, such as "
            f"year>=2020; got {text!r}"
        )
    return Condition(*match.groups())


def check_fields(conditions: Sequence[Condition], known: Iterable[str], index: str) -> None:
    """Raise a ValueError for a field that no item has, on which no condition could be met."""
    known = set(known)
    for condition in conditions:
        if condition.field not in known:
            raise ValueError(
                f"no item of {index} has the field {condition.field!r}; "
                f"{suggestion(condition.field, known, 'the fields are')}"
            )


def all_met(conditions: Sequence[Condition], metadata: Mapping[str, Value]) -> bool:
    return all(condition.is_met(metadata) for condition in conditions)
