"""Results on a GPU as tables, with findings and targets, and as a page of the documentation.

Common batch sizes come first, then whole training steps, then large batches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby

from benchmarks import (
    gpu_batches,
    gpu_batches_page,
    gpu_launches,
    gpu_mining,
    gpu_steps,
    gpu_training,
    pairs,
)
from benchmarks.case import Case, Measurement
from benchmarks.gpu_cases import OVER_ALL_NEGATIVES
from benchmarks.gpu_notes import notes
from benchmarks.gpu_results import Accuracy, Results
from benchmarks.tables import Table, gibibytes, milliseconds, seconds, three_digits, time_ratio

COMPARISONS = ("large", "larger", "largest", "captions")
"""Suites whose tables compare objectives with the bare product."""

RELATIVE, RELATIVE_TARGET = "-ms", 1.5
"""Suffix of objectives that compare a pair with others of the batch, and their target in products.
"""
SAME = 0.001
"""Relative tolerance between values of one loss, except in the suite of batches."""


def page(found: Results) -> str:
    parts = [
        "# Benchmarks on a GPU",
        f"Written from a run of {_where(found.machine)}.",
        *(f"Part {part!r} is from a run of {_where(m)}." for part, m in found.later.items()),
        *(f"## {table.title}\n\n{table.markdown()}" for table in tables(found)),
        notes(),
        _agreement(found),
    ]
    return "\n\n".join(parts) + "\n"


def _where(machine: dict[str, str]) -> str:
    not_versions = ("command", "date", "device")
    versions = ", ".join(f"{k} {v}" for k, v in machine.items() if k not in not_versions)
    return f"`{machine['command']}` on {machine['date']}: {machine['device']}; {versions}"


def tables(found: Results) -> list[Table]:
    """Build all tables for which there are numbers."""
    made = gpu_batches_page.ratio_tables(found)
    made += gpu_launches.tables(found)
    made += gpu_training.tables(found)
    made.append(_accuracy_table(found.accuracy))
    made += [_comparison(found, suite) for suite in COMPARISONS]
    made += [_scaling(found), _mining(found), _pairs(found), _steps(found)]
    made += gpu_batches_page.detail_tables(found)
    return [table for table in made if table.rows]


# --- tables -------------------------------------------------------------------------------------


def _accuracy_table(accuracy: Iterable[Accuracy]) -> Table:
    groups = groupby(accuracy, key=lambda a: (a.dtype, a.execution))
    return Table(
        "Accuracy: the worst relative error of all objectives, against dense in float64",
        ["inputs", "execution", "value", "gradient", "same bits twice", "failed"],
        [accuracy_row(list(group)) for _, group in groups],
    )


def accuracy_row(group: list[Accuracy]) -> list[str]:
    """Summarise all objectives in one precision and execution."""
    failed = [a for a in group if a.failure]
    done = [a for a in group if not a.failure]
    value, gradient, same_bits = "-", "-", "-"
    if done:
        by_value = max(done, key=lambda a: a.value_error)
        by_gradient = max(done, key=lambda a: a.gradient_error)
        value = f"{by_value.value_error:.1e} ({by_value.objective})"
        gradient = f"{by_gradient.gradient_error:.1e} ({by_gradient.objective})"
        different = [a.objective for a in done if not a.same_bits]
        same_bits = f"no: {', '.join(different)}" if different else "yes"
    return [
        group[0].dtype,
        group[0].execution,
        value,
        gradient,
        same_bits,
        _first_of(failed),
    ]


def _first_of(failed: list[Accuracy]) -> str:
    """Describe the first failure; the JSON has them all."""
    if not failed:
        return "none"
    return f"{len(failed)}, the first {failed[0].objective}: {failed[0].failure}"


def _comparison(found: Results, suite: str) -> Table:
    cases = found.of(suite)
    columns = ["objective", "execution", "ms", "times the product", "times four products"]
    rows = [_comparison_row(case, found) for case in cases]
    title = _size(cases[0]) if cases else ""
    finding = _of_products(found, cases) if suite == "large" else ""
    return Table(title, [*columns, "extra GiB"], rows, finding)


def _of_products(found: Results, cases: list[Case]) -> str:
    """Describe the time of relative objectives in products, and of others in four products."""
    times: dict[str, list[float]] = {RELATIVE: [], "": []}
    for case in cases:
        m, product = found.measured[case], found.product(case)
        if m.seconds and product.seconds and case.who == "triton":
            if case.what.endswith(RELATIVE):
                times[RELATIVE].append(m.seconds / product.seconds)
            elif case.what in OVER_ALL_NEGATIVES:
                times[""].append(m.seconds / product.seconds / 4)
    target = f"Target: at most {RELATIVE_TARGET} times the product for objectives in {RELATIVE}."
    parts = [target]
    if times[RELATIVE]:
        parts.append(f"They take {_range(times[RELATIVE])} times.")
    if times[""]:
        parts.append(f"Those over all negatives take {_range(times[''])} times four products.")
    return " ".join(parts)


def _range(numbers: list[float]) -> str:
    return f"{three_digits(min(numbers))} to {three_digits(max(numbers))}"


def _size(case: Case) -> str:
    texts = case.images * case.captions
    return f"{case.images:,} images x {texts:,} texts, width {case.width:,}"


def _comparison_row(case: Case, found: Results) -> list[str]:
    m, product = found.measured[case], found.product(case)
    what, who = case.what, case.who
    if who == "product":
        what, who = "one bare product (the floor)", "-"
    four = replace(product, seconds=4 * product.seconds if product.seconds else None)
    of_four = time_ratio(m, four) if case.what in OVER_ALL_NEGATIVES else "-"
    return [what, who, milliseconds(m), time_ratio(m, product), of_four, gibibytes(m)]


def _scaling(found: Results) -> Table:
    cases = found.of("scaling", "large", "larger", "largest")
    cases = [case for case in cases if (case.who, case.what) == ("triton", "triplet-hard")]
    rows = [
        [
            f"{case.images:,}",
            f"{case.width:,}",
            milliseconds(found.measured[case]),
            time_ratio(found.measured[case], found.product(case)),
            gibibytes(found.measured[case]),
        ]
        for case in sorted(cases, key=lambda case: case.images)
    ]
    columns = ["batch", "width", "ms", "times the product", "extra GiB"]
    return Table("Scaling: triplet-hard, triton", columns, rows)


def _mining(found: Results) -> Table:
    cases = found.of(gpu_mining.SUITE)
    target = f"{gpu_mining.TARGET} times the product, {gpu_mining.TARGET_GIB} GiB"
    title = f"Mining: {_size(cases[0])}; target: {target}" if cases else ""
    rows = [
        [
            gpu_mining.TITLES[case.who],
            seconds(found.measured[case]),
            time_ratio(found.measured[case], found.product(case)),
            gibibytes(found.measured[case]),
        ]
        for case in cases
    ]
    return Table(title, ["what", "seconds", "times the product", "extra GiB"], rows)


def _pairs(found: Results) -> Table:
    """Build a table with a row for every model: ours, and a loop over the captions."""
    cases = [case for case in found.of(pairs.SUITE) if case.who == "ours"]
    images = cases[0].images if cases else 0
    size = f"{images} images of {pairs.REGIONS} regions x {images} captions"
    rows = []
    for case in cases:
        ours = found.measured[case]
        loop = found.measured.get(replace(case, who="loop"), Measurement())
        both = (milliseconds(ours), gibibytes(ours), milliseconds(loop), gibibytes(loop))
        rows.append([case.what, *both, time_ratio(loop, ours)])
    columns = ["model", "ours ms", "ours GiB", "loop ms", "loop GiB", "loop / ours"]
    return Table(f"Pair scores: {size}, float32", columns, rows)


def _steps(found: Results) -> Table:
    """Build a table with a row for every model and a column for every objective."""
    asked = (gpu_steps.ONLINE, *gpu_steps.MINED)
    cases = [case for case in found.of(gpu_steps.SUITE) if case.who == gpu_steps.ONLINE]
    rows = []
    for case in cases:
        online = found.measured[case]
        row = [found.measured.get(replace(case, who=who), Measurement()) for who in asked]
        ratios = [f"{milliseconds(m)} ({time_ratio(m, online)} times)" for m in row[1:]]
        rows.append([case.what, milliseconds(online), *ratios, gibibytes(row[-1])])
    pairs_of = f"{cases[0].images} pairs" if cases else ""
    title = f"Training steps with mined negatives: {pairs_of}; target: {gpu_steps.TARGET} times"
    columns = ["model", *(f"{who}, ms" for who in asked), "the last's extra GiB"]
    return Table(title, columns, rows)


# --- agreement ----------------------------------------------------------------------------------


def _agreement(found: Results) -> str:
    """Describe whether all values of the same loss on the same batch agree."""
    different = disagreements(found)
    if not different:
        return (
            "All who compute the same loss of the same batch found the same value: batches as said "
            "above, others to 0.1%."
        )
    return "Values of one loss that differ: " + "; ".join(different) + "."


def disagreements(found: Results) -> list[str]:
    first: dict[Case, tuple[str, float]] = {}
    different = []
    for case, m in found.measured.items():
        if "loss" not in m.numbers:
            continue
        loss = m.numbers["loss"]
        who, other = first.setdefault(replace(case, who=""), (case.who, loss))
        if not abs(loss - other) <= _tolerance(case, other):
            different.append(f"{case.what}, {_size(case)}: {who} {other}, {case.who} {loss}")
    return different


def _tolerance(case: Case, value: float) -> float:
    if case.suite != gpu_batches.SUITE:
        return SAME * abs(value)
    share = gpu_batches.SAME_IN_PML if case.who == "pml" else gpu_batches.SAME
    return share * abs(value) + gpu_batches.NOTHING
