"""Studies: parameters that are varied, and the points of them that are tried on dev.

    sample = 16                                             # beside the title
    trials = 48
    [parameters]                                            # of every objective
    "training.learning_rate" = { low = 3e-4, high = 3e-3, log = true }
    [objectives.nt-xent.parameters]                         # of one
    "objective.temperature" = { low = 0.02, high = 0.2, log = true }

Every objective has its own points. Lists alone form a grid, which is run completely; `sample` takes
that many points, spread evenly over lists and ranges. With `trials` further points follow, which
depend on the results so far: tuning.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice, product
from math import exp, inf, log, prod
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, model_validator

from gradspace.parameters import Real
from gradspace.runs.recipe_tables import RecipeTable

ALMOST_ONE = 1 - 1e-9
"""Largest share of a range or a list, just below its end."""
StudyPoint = tuple[tuple[str, Any], ...]
"""Key of the training recipe and its value, for every parameter of an objective."""


class Range(RecipeTable):
    """Numbers from low to high, spread evenly or, with `log`, evenly in their logarithm."""

    low: Real
    high: Real
    log: bool = False

    @model_validator(mode="after")
    def _is_a_range(self) -> Range:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError("a range needs low below high, and above zero with log")
        return self

    def at(self, share: float) -> float:
        """Return the number at this share of the range."""
        if self.log:
            return self.rounded(exp(log(self.low) + share * log(self.high / self.low)))
        return self.rounded(self.low + share * (self.high - self.low))

    def rounded(self, value: float) -> float:
        """Round to three digits, so that a run can be named after the value."""
        return min(max(float(f"{value:.3g}"), self.low), self.high)


LIST, RANGE = "a list", "a range"
"""Names of the kinds of values in pydantic's error messages."""


def _kind(given: Any) -> str | None:
    return LIST if isinstance(given, list) else RANGE if isinstance(given, dict | Range) else None


AxisValues = Annotated[
    Annotated[list[Any], Field(min_length=1), Tag(LIST)] | Annotated[Range, Tag(RANGE)],
    Discriminator(
        _kind,
        custom_error_type="values",
        custom_error_message="should be a list of values, or a range such as { low = 1, high = 2 }",
    ),
]
StudyAxes = Mapping[str, AxisValues]
"""Key of the training recipe -> values to try."""


@dataclass(frozen=True)
class Study:
    """Parameters of one objective, and the number of points to try."""

    axes: StudyAxes
    sample: int | None = None
    trials: int | None = None

    def check(self) -> None:
        """Raise a ValueError unless sample and trials define the number of points."""
        if self.trials and not self.sample:
            raise ValueError("trials needs sample, the number of points to start with")
        if self.trials and self.sample and self.trials < self.sample:
            raise ValueError(
                f"trials is {self.trials} and sample {self.sample}: trials counts all points of an "
                "objective, including the sample"
            )
        if not self.sample and _grid_size(self.axes) == inf:
            raise ValueError("parameters with a range of values need sample, the number of points")

    @property
    def num_points(self) -> int:
        """Number of all points, including those not chosen yet."""
        return int(min(_grid_size(self.axes), self.trials or self.sample or inf))

    def start(self) -> list[StudyPoint]:
        """List the points known in advance; without parameters, an empty one."""
        if self.num_points == _grid_size(self.axes):
            lists = [v for v in self.axes.values() if isinstance(v, list)]
            return [tuple(zip(self.axes, values, strict=True)) for values in product(*lists)]
        assert self.sample is not None
        return list(islice(spread_points(self.axes), self.sample))

    def ends(self) -> list[StudyPoint]:
        """Return two corners of the space: all lowest or first values, and all highest or last."""
        return [
            tuple((key, _at(values, share)) for key, values in self.axes.items())
            for share in (0.0, ALMOST_ONE)
        ]


def _grid_size(axes: StudyAxes) -> float:
    """Return the number of different points, infinite with a range."""
    return prod(len(values) if isinstance(values, list) else inf for values in axes.values())


def spread_points(axes: StudyAxes, known: Iterable[StudyPoint] = ()) -> Iterator[StudyPoint]:
    """Yield distinct points that fill the space ever more densely (Sobol, with a fixed scrambling).

    Points in `known` are skipped.
    """
    from scipy.stats import qmc  # takes half a second to import

    seen = set(map(point_label, known))
    sobol = qmc.Sobol(len(axes), rng=0)
    for power in count():  # 1, 2, 4, 8 ... points in total, which are even in every axis
        for shares in sobol.random_base2(max(power - 1, 0)).tolist():
            point = tuple(
                (key, _at(values, share))
                for (key, values), share in zip(axes.items(), shares, strict=True)
            )
            if point_label(point) not in seen:
                seen.add(point_label(point))
                yield point


def _at(values: AxisValues, share: float) -> Any:
    return values[int(share * len(values))] if isinstance(values, list) else values.at(share)


def point_label(point: StudyPoint) -> str:
    """Format a point, such as `margin=0.2 scale=10`."""
    return " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in point)
