"""Tables and findings of the suite "batches": ratios with their targets, then all figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks.case import Case, Measurement
from benchmarks.gpu_batches import IN_PML, SUITE
from benchmarks.gpu_results import Results
from benchmarks.plain import PLAIN
from benchmarks.tables import Table, megabytes, memory_ratio, milliseconds, three_digits, time_ratio

AS_GOOD = 0.95
"""Share of the other's time above which ours does not count as faster."""
LISTED = 4
"""Largest number of objectives that a sentence names; the table has them all."""


@dataclass(frozen=True)
class Comparison:
    """Ratio of ours to another, and the target for it."""

    who: str
    name: str
    of: str
    """Quantity compared: "time" or "memory"."""
    target: float
    sizes: range
    """Batch sizes that the target is for, from the first to the last."""
    objectives: Sequence[str] = tuple(PLAIN)
    """Objectives that have a row."""
    aimed_at: Sequence[str] = tuple(PLAIN)
    """Objectives that the target is for."""

    @property
    def title(self) -> str:
        return f"Our {self.of} over that of {self.name}, by the pairs of the batch"

    @property
    def ratio(self) -> Callable[[Measurement, Measurement], float | None]:
        return _seconds_ratio if self.of == "time" else _megabytes_ratio


COMPARISONS = (
    Comparison("plain", "plain torch", "time", 1.0, range(128, 2049)),
    Comparison("compiled", "compiled plain torch", "time", 1.0, range(4096, 16_385)),
    Comparison("compiled", "compiled plain torch", "memory", 0.2, range(4096, 16_385)),
    Comparison(
        "pml", "pytorch-metric-learning", "time", 1.1, range(128, 2049), IN_PML, ("nt-xent",)
    ),
)


def ratio_tables(found: Results) -> list[Table]:
    """Build tables with a row for every objective and a column for every batch size."""
    cases = found.of(SUITE)
    sizes = sorted({case.images for case in cases})
    return [_ratio_table(found, comparison, sizes) for comparison in COMPARISONS if cases]


def detail_tables(found: Results) -> list[Table]:
    """Build a table for every objective with a row for every batch size."""
    measured = {case.what for case in found.of(SUITE)}
    return [_details(found, what) for what in PLAIN if what in measured]


def _ratio_table(found: Results, comparison: Comparison, sizes: list[int]) -> Table:
    rows = [
        [what, *(_cell(found, comparison, what, size) for size in sizes)]
        for what in comparison.objectives
    ]
    columns = ["objective", *(f"{size:,}" for size in sizes)]
    return Table(comparison.title, columns, rows, _finding(found, comparison))


def _cell(found: Results, comparison: Comparison, what: str, size: int) -> str:
    ours, other = (_of(found, who, what, size) for who in ("ours", comparison.who))
    ratio = comparison.ratio(ours, other)
    return three_digits(ratio) if ratio is not None else ours.failure or other.failure or "-"


def _details(found: Results, what: str) -> Table:
    others = {"plain": "plain torch", "compiled": "compiled", "pml": "PML"}
    rows = []
    for size in sorted({case.images for case in found.of(SUITE) if case.what == what}):
        by_who = {
            who: found.measured.get(_case(found, who, what, size)) for who in (*others, "ours")
        }
        ours, compiled = (by_who[who] or Measurement() for who in ("ours", "compiled"))
        times = [milliseconds(m) for m in by_who.values()]
        ratios = [time_ratio(ours, by_who[who] or Measurement()) for who in others]
        memory = [megabytes(m) for m in by_who.values()]
        rows.append([f"{size:,}", *times, *ratios, *memory, memory_ratio(ours, compiled)])
    columns = [
        "pairs",
        *(f"{name} ms" for name in (*others.values(), "ours")),
        *(f"ours / {name}" for name in others.values()),
        *(f"{name} MB" for name in (*others.values(), "ours")),
        "ours / compiled, MB",
    ]
    return Table(f"{what}, batch by batch", columns, rows)


# --- findings -----------------------------------------------------------------------------------


def _finding(found: Results, comparison: Comparison) -> str:
    """Describe whether the target is met, and where the other is as good."""
    first, last = comparison.sizes[0], comparison.sizes[-1]
    all_of_them = len(comparison.aimed_at) == len(PLAIN)
    whose = "every objective" if all_of_them else ", ".join(comparison.aimed_at)
    limit = f"{comparison.target:.1f} times {comparison.name}"
    ours = [case for case in found.of(SUITE) if case.who == "ours"]
    ratios = {
        (case.what, case.images): ratio
        for case in ours
        if (ratio := _ratio_of(found, comparison, case)) is not None
    }
    aimed_at = {
        key: ratio
        for key, ratio in ratios.items()
        if key[0] in comparison.aimed_at and key[1] in comparison.sizes
    }
    parts = [f"Target: at most {limit} for {whose} at {first:,} to {last:,} pairs."]
    parts.append(_met(aimed_at, comparison.target))
    if failed := sum(found.measured[case].failure is not None for case in ours):
        parts.append(f"Ours failed {failed} times.")
    if comparison.of == "time":
        parts.append(_as_good(ratios, comparison.name))
    return " ".join(parts)


def _met(ratios: dict[tuple[str, int], float], target: float) -> str:
    if not ratios:
        return "Nothing was measured for it."
    missed = {key: ratio for key, ratio in ratios.items() if ratio > target}
    if not missed:
        return f"Met in all {len(ratios)} cells, {three_digits(max(ratios.values()))} at most."
    return f"Met in {len(ratios) - len(missed)} of {len(ratios)} cells; not by {_listed(missed)}."


def _as_good(ratios: dict[tuple[str, int], float], name: str) -> str:
    as_good = {key: ratio for key, ratio in ratios.items() if ratio > AS_GOOD}
    if not ratios:
        return f"Nothing was measured of {name}."
    if not as_good:
        return f"Ours is faster than {name} in all {len(ratios)} cells of the table."
    count = f"{len(as_good)} of {len(ratios)} cells"
    return f"As good as ours, or better, is {name} in {count}: {_listed(as_good)}."


def _listed(ratios: dict[tuple[str, int], float]) -> str:
    """List the worst objectives, each at its worst: "circle at 128 (1.31) and 2 more batches"."""
    worst: dict[str, str] = {}
    for (what, size), ratio in sorted(ratios.items(), key=lambda item: -item[1]):
        more = sum(other == what for other, _ in ratios) - 1
        others = f" and {more} more {'batch' if more == 1 else 'batches'}" if more else ""
        worst.setdefault(what, f"{what} at {size:,} ({three_digits(ratio)}){others}")
    shown, hidden = list(worst.values())[:LISTED], len(worst) - LISTED
    return ", ".join(shown) + (f", and {hidden} more objectives" if hidden > 0 else "")


# --- measurements -------------------------------------------------------------------------------


def _case(found: Results, who: str, what: str, size: int) -> Case:
    width = next(case.width for case in found.of(SUITE))
    return Case(SUITE, who, what, size, 1, width)


def _of(found: Results, who: str, what: str, size: int) -> Measurement:
    return found.measured.get(_case(found, who, what, size), Measurement())


def _ratio_of(found: Results, comparison: Comparison, ours: Case) -> float | None:
    other = found.measured.get(replace(ours, who=comparison.who), Measurement())
    return comparison.ratio(found.measured[ours], other)


def _seconds_ratio(ours: Measurement, other: Measurement) -> float | None:
    return ours.seconds / other.seconds if ours.seconds and other.seconds else None


def _megabytes_ratio(ours: Measurement, other: Measurement) -> float | None:
    return ours.megabytes / other.megabytes if ours.megabytes and other.megabytes else None
