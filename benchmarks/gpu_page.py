"""What was found on a GPU: as JSON, as tables, and as a page for the documentation."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path

from benchmarks import gpu_mining, gpu_steps, pairs
from benchmarks.case import Case, Measurement
from benchmarks.gpu_accuracy import Accuracy
from benchmarks.gpu_cases import COMPARED, OVER_ALL_NEGATIVES
from benchmarks.tables import Table, gibibytes, milliseconds, seconds, time_ratio

ACCURACY = "accuracy"
COMPARISONS = ("large", "larger", "largest", "captions")
"""Tables that set objectives beside the bare product."""

NOTES = """
## How it is measured

Forward + backward to both sides' embeddings in one process. Time: the median of 3 runs (20 of the
small batches, 1 of the largest) between two CUDA events, after one run that compiles the kernels.
Memory: the peak that torch allocated above what was allocated before, the gradients included. The
embeddings are random, in bfloat16 and of length 1, with a cosine of 0.3 between a text and its
image; ids are integers on the GPU. The product is one `torch.mm` of the embeddings into bfloat16,
timed just before the rows it is compared with; one that is larger than 131,072 x 131,072 is taken
in parts, each into the same memory. Four products are what an objective over all negatives takes at
the least: one forward, and backward the scores again and the gradients of both sides.

"triton", "streamed" and "dense" are the executions of `RetrievalLoss`; "auto" is what it takes if
nobody says. A "triton" row whose kernels do not compile fails, instead of being streamed.

Mining takes embeddings on the GPU to lists in main memory. All its rows compute the same tiles, in
bfloat16 with float32 results.

Pair scores: the loop copies a caption for every image and builds its attended vectors, as the
published codes do, in the same float32.

Training steps: the median of 20, in bfloat16, with the drawing of the batch and the update of the
weights, after 20 others; features lie on the GPU. VSRN has its caption decoder. A step with mined
negatives embeds three times as many images and texts.
"""


@dataclass
class Results:
    """All that one run of the benchmarks found; part of it, if it was cut off."""

    machine: dict[str, str]
    """The command, the date, the device and versions."""
    accuracy: list[Accuracy] = field(default_factory=list)
    measured: dict[Case, Measurement] = field(default_factory=dict)
    later: dict[str, dict[str, str]] = field(default_factory=dict)
    """By part: the machine of those that were measured again, in a run of their own."""

    def measure_again(self, parts: Iterable[str], machine: dict[str, str]) -> None:
        """Forget parts, which that machine will measure."""
        for part in parts:
            self.later[part] = machine
            for case in self.of(part):
                del self.measured[case]
            if part == ACCURACY:
                self.accuracy.clear()

    def save(self, path: Path) -> None:
        """All or nothing: who is cut off while writing keeps what was there."""
        cases = [{"case": asdict(c), "measured": asdict(m)} for c, m in self.measured.items()]
        accuracy = [asdict(a) for a in self.accuracy]
        content = {
            "machine": self.machine,
            "accuracy": accuracy,
            "cases": cases,
            "later": self.later,
        }
        unfinished = path.with_name(f"{path.name}.part")
        unfinished.write_text(json.dumps(content, indent=1) + "\n")
        os.replace(unfinished, path)

    @staticmethod
    def load(path: Path) -> Results:
        content = json.loads(path.read_text())
        return Results(
            content["machine"],
            [Accuracy(**a) for a in content["accuracy"]],
            {Case(**c["case"]): Measurement(**c["measured"]) for c in content["cases"]},
            content.get("later", {}),
        )

    def of(self, *suites: str) -> list[Case]:
        return [case for case in self.measured if case.suite in suites]

    def product(self, case: Case) -> Measurement:
        """The bare product of that size."""
        product = replace(case, who="product", what="product")
        return self.measured.get(product, Measurement())


def page(found: Results) -> str:
    parts = [
        "# Benchmarks on a GPU",
        f"Written from a run of {_where(found.machine)}.",
        *(f"Part {part!r} is from a run of {_where(m)}." for part, m in found.later.items()),
        *(f"## {table.title}\n\n{table.markdown()}" for table in tables(found)),
        NOTES.strip(),
        _agreement(found),
    ]
    return "\n\n".join(parts) + "\n"


def _where(machine: dict[str, str]) -> str:
    not_versions = ("command", "date", "device")
    versions = ", ".join(f"{k} {v}" for k, v in machine.items() if k not in not_versions)
    return f"`{machine['command']}` on {machine['date']}: {machine['device']}; {versions}"


def tables(found: Results) -> list[Table]:
    """Those that there are numbers for."""
    made = [_accuracy_table(found.accuracy)]
    made += [_comparison(found, suite) for suite in COMPARISONS]
    made += [_scaling(found), _small(found), _mining(found), _pairs(found), _steps(found)]
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
    """Of all objectives in one precision and execution."""
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
    """The JSON has them all."""
    if not failed:
        return "none"
    return f"{len(failed)}, the first {failed[0].objective}: {failed[0].failure}"


def _comparison(found: Results, suite: str) -> Table:
    cases = found.of(suite)
    columns = ["objective", "execution", "ms", "times the product", "times four products"]
    rows = [_comparison_row(case, found) for case in cases]
    return Table(_size(cases[0]) if cases else "", [*columns, "extra GiB"], rows)


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


def _small(found: Results) -> Table:
    """One row for every batch, one column for every objective and execution."""
    cases = found.of("small")
    asked = [(what, who) for what in COMPARED for who in ("dense", "auto")]
    width = cases[0].width if cases else 0
    rows = []
    for size in sorted({case.images for case in cases}):
        row = [Case("small", who, what, size, 1, width) for what, who in asked]
        rows.append([f"{size:,}", *(milliseconds(found.measured.get(case)) for case in row)])
    columns = ["batch", *(f"{what}, {who}, ms" for what, who in asked)]
    return Table(f"Small batches, width {width:,}", columns, rows)


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
    """One row for every scorer: ours, and a loop over the captions."""
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
    """One row for every model, one column for every objective."""
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
    """Whether all executions of an objective found the same loss of the same batch."""
    different = disagreements(found)
    if not different:
        return "All executions of an objective found the same loss of the same batch, to 0.1%."
    return "Losses that differ by more than 0.1%: " + "; ".join(different) + "."


def disagreements(found: Results) -> list[str]:
    first: dict[tuple[str, int, int, int], tuple[str, float]] = {}
    different = []
    for case, m in found.measured.items():
        if "loss" not in m.numbers:
            continue
        same = (case.what, case.images, case.captions, case.width)
        loss = m.numbers["loss"]
        who, other = first.setdefault(same, (case.who, loss))
        if not abs(loss - other) <= 1e-3 * abs(other):
            different.append(f"{case.what}, {_size(case)}: {who} {other}, {case.who} {loss}")
    return different
