"""`python -m benchmarks.gpu`: accuracy, time and memory on a CUDA device.

Needs torch, transformers and gradspace. pytorch-metric-learning has a column, which says if it is
not installed. Every number is printed, and written to the JSON file, as soon as it is measured. The
page can be made elsewhere from that file: `python -m benchmarks.gpu --from-json FILE --write`. With
--only, an existing file keeps its other parts; with --batch and --objective it also keeps the other
rows of the part.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from datetime import date
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

import torch

from benchmarks.case import Case
from benchmarks.gpu_accuracy import accuracies
from benchmarks.gpu_cases import DEVICE, cases, measure
from benchmarks.gpu_compiling import compile_ahead
from benchmarks.gpu_page import accuracy_row, disagreements, page, tables
from benchmarks.gpu_results import ACCURACY, Results, Selection
from benchmarks.tables import gibibytes, milliseconds, time_ratio

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "benchmarks-gpu.md"
PARTS = (ACCURACY, *dict.fromkeys(case.suite for case in cases(quick=True)))


def main() -> None:
    options = _options()
    if options.from_json:
        found = Results.load(options.from_json)
    elif torch.cuda.is_available():
        found = _run(options.quick, _selection(options), options.json)
    else:
        raise SystemExit("benchmarks.gpu needs a CUDA device, but this machine has none")
    for table in tables(found):
        print(f"\n{table.title}\n\n{table.markdown()}", flush=True)
    if options.write:
        PAGE.write_text(page(found))
        print(f"\nwrote {PAGE}")
    if different := disagreements(found):
        raise SystemExit("losses that should be equal differ: " + "; ".join(different))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does everything work?")
    parser.add_argument("--only", action="append", choices=PARTS, help="a part, or several of them")
    parser.add_argument("--batch", action="append", type=int, help="of --only, these batches alone")
    parser.add_argument("--objective", action="append", help="of --only, these objectives alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers")
    parser.add_argument("--from-json", type=Path, metavar="FILE", help="read them, measure nothing")
    parser.add_argument(
        "--write", action="store_true", help="write docs/reference/benchmarks-gpu.md"
    )
    options = parser.parse_args()
    if options.write and (options.quick or options.only):
        parser.error("--write needs the whole run, without --quick and --only")
    if (options.batch or options.objective) and not options.only:
        parser.error("--batch and --objective say which rows of a part are measured: add --only")
    return options


def _selection(options: argparse.Namespace) -> Selection:
    given = (options.only or PARTS, options.batch or (), options.objective or ())
    return Selection(*map(tuple, given))


def _run(quick: bool, selection: Selection, json: Path | None) -> Results:
    start = time.perf_counter()
    machine = _machine(quick, selection)
    print(", ".join(machine.values()), flush=True)
    found = _found_before(machine, selection, json)

    def save() -> None:
        if json:
            found.save(json)

    if ACCURACY in selection.parts:
        _find_accuracy(found, quick, save)
    selected = [case for case in cases(quick) if selection.takes(case)]
    compile_ahead(selected, DEVICE)
    for case in selected:
        found.measured[case] = measure(case)
        print(_line(case, found), flush=True)
        save()
    print(f"took {time.perf_counter() - start:.0f} s", flush=True)
    return found


def _found_before(machine: dict[str, str], selection: Selection, json: Path | None) -> Results:
    """Load the results to add to: none, or the other parts of an older run."""
    if selection.parts == PARTS or not (json and json.exists()):
        return Results(machine)
    found = Results.load(json)
    found.measure_again(selection, machine)
    return found


def _find_accuracy(found: Results, quick: bool, save: Callable[[], None]) -> None:
    groups = groupby(accuracies(quick), key=lambda a: (a.dtype, a.execution))
    for _, group in groups:
        start = len(found.accuracy)
        for accuracy in group:
            found.accuracy.append(accuracy)
            save()
        print(f"accuracy: {', '.join(accuracy_row(found.accuracy[start:]))}", flush=True)


def _line(case: Case, found: Results) -> str:
    m = found.measured[case]
    what = case.what if case.who == "product" else f"{case.what}, {case.who}"
    title = f"{case.suite}: {what}, {case.images} x {case.captions}, width {case.width}"
    if m.failure:
        return f"{title}: {m.failure}"
    counted = [f"{value:.6g} {name.replace('_', ' ')}" for name, value in m.numbers.items()]
    if m.seconds is not None:
        counted = [f"{milliseconds(m)} ms", f"{gibibytes(m)} GiB", *counted]
    if found.product(case).seconds:
        counted.insert(1, f"{time_ratio(m, found.product(case))} products")
    return f"{title}: {', '.join(counted)}"


def _machine(quick: bool, selection: Selection) -> dict[str, str]:
    only = [] if selection.parts == PARTS else [f"--only {part}" for part in selection.parts]
    options = ["--quick"] * quick + only + selection.options
    triton = import_module("triton").__version__ if find_spec("triton") else "missing"
    return {
        "command": " ".join(["python -m benchmarks.gpu", *options]),
        "date": date.today().isoformat(),
        "device": torch.cuda.get_device_name(),
        "python": platform.python_version(),
        "gradspace": version("gradspace"),
        "torch": torch.__version__,
        "triton": str(triton),
    }


if __name__ == "__main__":
    main()
