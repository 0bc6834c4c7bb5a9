"""The GPU's benchmarks, as far as they go without one: what is asked, failures and the page."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import gradspace as gs
from gradspace.data.batches import Batch
from gradspace.training.loop import Trainer

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import gpu, gpu_accuracy, gpu_cases, gpu_mining, gpu_steps
from benchmarks.case import Case, Measurement
from benchmarks.gpu_page import disagreements, page
from benchmarks.gpu_results import Accuracy, Results, Selection
from benchmarks.gpu_timing import Step

PRODUCT = Case("large", "product", "product", 512, 1, 64)
HARD = replace(PRODUCT, who="triton", what="triplet-hard")
NT_XENT = replace(PRODUCT, who="triton", what="nt-xent")
DENSE = replace(PRODUCT, who="dense", what="nt-xent")


def small_results() -> Results:
    machine = {
        "command": "make it",
        "date": "today",
        "device": "a GPU",
        "torch": "2",
        "triton": "3",
    }
    accuracy = [
        Accuracy("bfloat16", "triton", "circle", 1e-5, 2e-3),
        Accuracy("bfloat16", "triton", "triplet", 2e-5, 1e-3, same_bits=False),
        Accuracy("bfloat16", "streamed", "circle", failure="out of memory"),
    ]
    measured = {
        PRODUCT: Measurement(0.010, 0.010, 0.0),
        HARD: Measurement(0.015, 0.015, 2**30 / 1e6, numbers={"loss": 1.0}),
        NT_XENT: Measurement(0.044, 0.044, 2**29 / 1e6, numbers={"loss": 2.0}),
        DENSE: Measurement(failure="out of memory"),
    }
    return Results(machine, accuracy, measured)


def test_page_is_made_from_json(tmp_path: Path) -> None:
    small_results().save(tmp_path / "found.json")
    found = Results.load(tmp_path / "found.json")
    assert found == small_results()
    lines = page(found).splitlines()
    assert lines[2] == "Written from a run of `make it` on today: a GPU; torch 2, triton 3."
    for line in (
        "| bfloat16 | triton | 2.0e-05 (triplet) | 2.0e-03 (circle) | no: triplet | none |",
        "| bfloat16 | streamed | - | - | - | 1, the first circle: out of memory |",
        "## 512 images x 512 texts, width 64",
        "| one bare product (the floor) | - | 10.0 | 1.00 | - | 0.00 |",
        "| triplet-hard | triton | 15.0 | 1.50 | - | 1.00 |",
        "| nt-xent | triton | 44.0 | 4.40 | 1.10 | 0.50 |",
        "| nt-xent | dense | out of memory | - | - | - |",
        "| 512 | 64 | 15.0 | 1.50 | 1.00 |",
    ):
        assert line in lines


MINING = gpu_mining.cases(quick=True)


def test_a_part_that_is_measured_later_joins_the_others(tmp_path: Path) -> None:
    """As a run with --only and a file that is there does it, twice."""
    json = tmp_path / "found.json"
    small_results().save(json)
    for date in ("tomorrow", "then"):
        machine = {**small_results().machine, "date": date}
        found = gpu._found_before(machine, Selection(("mining",)), json)
        assert not found.of("mining")
        for case, times in zip(MINING, (0.2, 3.4, 0.8), strict=True):
            found.measured[case] = Measurement(times, times, 2**31 / 1e6)
        found.save(json)
    lines = page(Results.load(json)).splitlines()
    assert lines[2].startswith("Written from a run of `make it` on today")
    assert lines[4] == (
        "Part 'mining' is from a run of `make it` on then: a GPU; torch 2, triton 3."
    )
    for line in (
        "| nt-xent | triton | 44.0 | 4.40 | 1.10 | 0.50 |",
        "## Mining: 400 images x 2,000 texts, width 32; target: 6 times the product, 8 GiB",
        "| bare product in tiles (the floor; no list) | 0.20 | 1.00 | 2.00 |",
        "| product and torch.topk in tiles, both directions merged | 3.40 | 17.0 | 2.00 |",
        "| gradspace mine_exact, own ones left out | 0.80 | 4.00 | 2.00 |",
    ):
        assert line in lines
    assert gpu._found_before(machine, Selection(gpu.PARTS), json) == Results(machine)
    assert not gpu._found_before(machine, Selection(("accuracy",)), json).accuracy


def test_mining_finds_the_same_lists_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_cases, "DEVICE", "cpu")
    floor, by_topk, ours = (gpu_cases.prepare(case)() for case in MINING)
    assert floor == ()
    torch.testing.assert_close(by_topk, ours, rtol=1e-4, atol=0)


def test_pairs_have_the_same_scores_and_gradients_either_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu_cases, "DEVICE", "cpu")
    both = [
        case for case in gpu_cases.cases(quick=True) if (case.suite, case.what) == ("pairs", "BFAN")
    ]
    ours, loop = (gpu_cases.prepare(case)() for case in both)
    torch.testing.assert_close(ours, loop)
    found = Results({"command": "", "date": "", "device": ""})
    found.measured |= {both[0]: Measurement(0.01, 0.01, 2147.483648)}
    found.measured |= {both[1]: Measurement(0.3, 0.3, 4294.967296)}
    assert "| BFAN | 10.0 | 2.00 | 300 | 4.00 | 30.0 |" in page(found)


@pytest.mark.parametrize("who", [gpu_steps.ONLINE, gpu_steps.MINED[-1]])
def test_a_step_with_mined_negatives_trains_on_three_times_the_rows(
    monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    monkeypatch.setattr(gpu_cases, "DEVICE", "cpu")
    rows = []

    def train_on(self: Trainer, batch: Batch) -> None:
        rows.append(len(batch.tokens))

    monkeypatch.setattr(Trainer, "train_on", train_on)
    case = next(c for c in gpu_steps.cases(quick=True) if (c.what, c.who) == ("BFAN", who))
    assert gpu_cases.prepare(case)() == ()
    assert rows == [case.images * (1 if who == gpu_steps.ONLINE else 3)] * (gpu_steps.WARM_UP + 1)


def test_steps_are_compared_with_those_without_mined_negatives() -> None:
    found = Results({"command": "", "date": "", "device": ""})
    for case in gpu_steps.cases(quick=True):
        time = 0.02 if case.who == gpu_steps.ONLINE else 0.025
        found.measured[case] = Measurement(time, time, 2147.483648)
    ratios = " | ".join(["25.0 (1.25 times)"] * 3)
    assert f"| VSRN | 20.0 | {ratios} | 2.00 |" in page(found)
    assert "## Training steps with mined negatives: 16 pairs; target: 1.5 times" in page(found)


def test_page_says_which_losses_differ() -> None:
    found = small_results()
    assert "the same loss of the same batch found the same value" in page(found)
    found.measured[DENSE] = Measurement(1, 1, 1, numbers={"loss": 2.1})
    (difference,) = disagreements(found)
    assert difference == "nt-xent, 512 images x 512 texts, width 64: triton 2.0, dense 2.1"
    assert difference in page(found)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
@pytest.mark.slow
def test_says_that_there_is_no_gpu() -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--quick"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "benchmarks.gpu needs a CUDA device, but this machine has none\n"


def test_every_product_is_measured_once_and_before_what_is_compared_with_it() -> None:
    asked = gpu_cases.cases(quick=False)
    assert len(set(asked)) == len(asked)
    for place, case in enumerate(asked):
        if case.suite not in (*gpu_cases.MEASURED_BY, "pairs", "steps"):
            assert asked.index(replace(case, who="product", what="product")) <= place


@pytest.mark.parametrize("who", ["product", "dense", "streamed", "auto", "dense, by position"])
def test_every_execution_can_be_prepared(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_cases, "DEVICE", "cpu")
    monkeypatch.setattr(gpu_cases, "SCORES_AT_ONCE", 100)
    step = gpu_cases.prepare(Case("large", who, "nt-xent", 16, 1, 8))
    assert [list(x.shape) for x in step()] == ([] if who == "product" else [[], [16, 8], [16, 8]])


@pytest.mark.slow
def test_a_case_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(error: Exception) -> Measurement:
        def prepare(case: Case) -> Step:
            raise error

        monkeypatch.setattr(gpu_cases, "prepare", prepare)
        return gpu_cases.measure(HARD)

    assert fail(torch.OutOfMemoryError("tried to allocate")).failure == "out of memory"
    assert fail(ValueError("a | b\nc")).failure == "ValueError: a / b"


def test_streamed_is_accurate_on_a_cpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_accuracy, "DEVICE", "cpu")
    monkeypatch.setattr(gpu_accuracy, "EXECUTIONS", ("streamed",))
    found = list(gpu_accuracy.accuracies(quick=True))
    assert len(found) == 4 * len(gs.list_objectives())
    for accuracy in found:
        assert accuracy.failure is None
        assert accuracy.same_bits
        assert accuracy.value_error < 1e-5
        assert accuracy.gradient_error < (1e-4 if accuracy.dtype in ("float32", "tf32") else 1e-2)
