"""Batches, launches and training steps of the GPU's benchmarks, on a CPU and at tiny sizes."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._C._autograd import DeviceType

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import gpu, gpu_batches, gpu_compiling, gpu_launches, gpu_training, step_parts
from benchmarks.case import Case, Measurement, bfloat16_batch
from benchmarks.gpu_batches_page import detail_tables, ratio_tables
from benchmarks.gpu_launches import IDS, Counts
from benchmarks.gpu_page import disagreements, page
from benchmarks.gpu_results import Results, Selection
from benchmarks.plain import PLAIN

NOWHERE = {"command": "make it", "date": "today", "device": "a GPU"}
OURS = Case("batches", "ours", "nt-xent", 64, 1, 32)


# --- batches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["nt-xent", "triplet-hard"])
def test_whoever_computes_a_batch_finds_the_same_loss(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pytorch_metric_learning")
    monkeypatch.setattr(gpu_batches, "CALLS", 2)
    found = Results(NOWHERE)
    for case in gpu_batches.cases(quick=True):
        if case.what == what and case.who != "compiled":
            m = found.measured[case] = gpu_batches.measure(case, "cpu")
            assert m.failure is None
            assert m.seconds
    assert {case.who for case in found.measured} == {"plain", "pml", "ours"}
    assert not disagreements(found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning:torch\\..*")
def test_plain_torch_is_compiled() -> None:
    plain, compiled = (replace(OURS, who=who, what="triplet-hard") for who in ("plain", "compiled"))
    losses = [gpu_batches.prepare(case, "cpu")()[0] for case in (plain, compiled)]
    torch.testing.assert_close(*losses, rtol=1e-2, atol=0)


@pytest.mark.slow
def test_every_plain_loss_is_one_graph() -> None:
    b = bfloat16_batch(OURS, 0.3, "cpu")
    for loss in PLAIN.values():
        torch.compiler.reset()
        compiled = torch.compile(loss, backend="aot_eager", fullgraph=True, dynamic=False)
        torch.testing.assert_close(compiled(b.images, b.texts), loss(b.images, b.texts))


def test_nothing_is_compiled_ahead_for_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of their own are for many."""
    monkeypatch.setattr(gpu_compiling, "ProcessPoolExecutor", None)
    compiled = replace(OURS, who="compiled")
    gpu_compiling.compile_ahead([OURS, compiled], "cpu")
    gpu_compiling.compile_ahead([compiled, replace(compiled, images=32_768)], "cpu")


def test_a_peer_that_is_missing_or_too_slow_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_batches, "TOO_SLOW", 0.0)
    assert gpu_batches.measure(OURS, "cpu") == Measurement(failure="over 0 s")
    monkeypatch.setattr(gpu_batches, "find_spec", lambda name: None)
    assert gpu_batches.measure(replace(OURS, who="pml"), "cpu") == Measurement(
        failure="not installed"
    )


def batches_found() -> Results:
    """Ours takes 1 ms and 10 MB, the others more; but circle is slow at 512 and fails at 128."""
    found = Results(NOWHERE)
    seconds = {"plain": 0.002, "compiled": 0.0008, "pml": 0.004, "ours": 0.001}
    for case in gpu_batches.cases(quick=False):
        slow = 3 if (case.who, case.what, case.images) == ("ours", "circle", 512) else 1
        megabytes = 10.0 if case.who == "ours" else 40.0
        time = slow * seconds[case.who] if case.images < 4096 else 0.001
        found.measured[case] = Measurement(time, time, megabytes, numbers={"loss": 2.0})
    found.measured[Case("batches", "ours", "circle", 128, 1, 512)] = Measurement(failure="broken")
    found.measured[Case("batches", "pml", "triplet", 2048, 1, 512)] = Measurement(
        failure="out of memory"
    )
    return found


def test_ratios_stand_beside_targets_and_what_misses_them() -> None:
    found = batches_found()
    plain, compiled, memory, pml = ratio_tables(found)
    assert [len(table.rows) for table in (plain, compiled, memory, pml)] == [11, 11, 11, 5]
    assert plain.rows[0] == ["nt-xent"] + ["0.50"] * 5 + ["1.00"] * 4
    circle = ["broken", "0.50", "1.50", "0.50", "0.50", "1.00", "1.00", "1.00", "1.00"]
    assert plain.rows[list(PLAIN).index("circle")] == ["circle", *circle]
    assert pml.rows[2][5] == "out of memory"
    assert plain.finding.startswith(
        "Target: at most 1.0 times plain torch for every objective at 128 to 2,048 pairs. "
        "Met in 53 of 54 cells; not by circle at 512 (1.50). Ours failed 1 times. "
        "As good as ours, or better, is plain torch in 45 of 98 cells: circle at 512 (1.50) and 4 "
        "more batches, nt-xent at 4,096 (1.00) and 3 more batches, "
    )
    assert "Met in all 33 cells, 1.00 at most." in compiled.finding
    assert memory.finding == (
        "Target: at most 0.2 times compiled plain torch for every objective at 4,096 to 16,384 "
        "pairs. Met in 0 of 33 cells; not by nt-xent at 4,096 (0.25) and 2 more batches, "
        "triplet-hard at 4,096 (0.25) and 2 more batches, triplet at 4,096 (0.25) and 2 more "
        "batches, siglip at 4,096 (0.25) and 2 more batches, and 7 more objectives. "
        "Ours failed 1 times."
    )
    assert "for nt-xent at 128 to 2,048 pairs. Met in all 5 cells, 0.25 at most." in pml.finding


def test_every_figure_of_the_batches_is_on_the_page() -> None:
    found = batches_found()
    nt_xent, *_ = detail_tables(found)
    assert " ".join(nt_xent.rows[0]) == (
        "128 2.00 0.80 4.00 1.00 0.50 1.25 0.25 40.0 40.0 40.0 10.0 0.25"
    )
    text = page(found)
    assert text.index("## Our time over that of plain torch") < text.index("## nt-xent, batch by")
    assert nt_xent.markdown() in text


def test_values_of_batches_may_differ_by_their_rounding() -> None:
    plain, pml = (replace(OURS, who=who) for who in ("plain", "pml"))
    found = Results(NOWHERE)
    for case, loss in ((plain, 2.0), (OURS, 2.015), (pml, 2.09)):
        found.measured[case] = Measurement(1, 1, numbers={"loss": loss})
    assert not disagreements(found)
    found.measured[OURS] = Measurement(1, 1, numbers={"loss": 2.03})
    found.measured[pml] = Measurement(1, 1, numbers={"loss": 2.2})
    assert len(disagreements(found)) == 2
    found.measured = {  # SmoothAP of a small batch, of which rounding leaves nothing
        replace(plain, what="smooth-ap"): Measurement(1, 1, numbers={"loss": 4e-6}),
        replace(OURS, what="smooth-ap"): Measurement(1, 1, numbers={"loss": 5e-6}),
    }
    assert not disagreements(found)


# --- launches -----------------------------------------------------------------------------------


def event(name: str, start: float, end: float = 0, on_gpu: bool = False) -> SimpleNamespace:
    device = DeviceType.CUDA if on_gpu else DeviceType.CPU
    times = SimpleNamespace(start=start, end=max(start, end))
    return SimpleNamespace(name=name, time_range=times, device_type=device)


def test_calls_of_cuda_within_the_region_are_counted() -> None:
    events = [
        event("cudaLaunchKernel", 1),
        event(gpu_launches.REGION, 9, 40, on_gpu=True),
        event(gpu_launches.REGION, 10, 20),
        *(event(name, 11) for name in ("cudaLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch")),
        event("cudaLaunchKernelExC", 19),  # by the thread of autograd
        *(event(name, 12) for name in ("cudaMemcpyAsync", "cudaStreamIsCapturing", "aten::mm")),
        *(event(name, 13) for name in ("cudaStreamSynchronize", "cudaMemcpy", "cuMemcpyDtoH_v2")),
        event("Memcpy DtoH (Device -> Pageable)", 25, on_gpu=True),  # when the GPU gets to it
        event("Memcpy HtoD (Pageable -> Device)", 25, on_gpu=True),
        event("void kernel<float>", 26, on_gpu=True),
        event("cudaDeviceSynchronize", 30),  # the profiler's own
    ]
    assert gpu_launches.counts_of(events) == Counts(4, 3, 1)


@pytest.mark.parametrize("who", [*IDS, gpu_launches.PLAIN_TORCH])
def test_a_call_can_be_profiled(who: str) -> None:
    case = Case("launches", who, "nt-xent", 16, 1, 8)
    value, *gradients = gpu_launches.call(case, "cpu")()
    assert [list(x.shape) for x in gradients] == [[16, 8], [16, 8]]
    assert value > 0
    if not torch.cuda.is_available():
        assert gpu_launches.measure(case, "cpu").numbers == {
            "launches": 0.0,
            "synchronisations": 0.0,
            "copies_to_host": 0.0,
        }


def test_launches_stand_beside_their_target() -> None:
    found = Results(NOWHERE)
    for case in gpu_launches.cases(quick=False):
        if case.what in ("nt-xent", "triplet-soft"):
            counts = {"launches": 20.0, "synchronisations": 0.0, "copies_to_host": 1.0}
            found.measured[case] = Measurement(numbers=counts)
    worst = Case("launches", IDS[1], "nt-xent", 512, 1, 512)
    found.measured[worst].numbers.update(launches=176.0, synchronisations=8.0)
    (table,) = gpu_launches.tables(found)
    assert table.rows == [
        ["nt-xent", "20", "176", "20", "20", "0", "8", "0", "1", "1", "1"],
        ["triplet-soft", "20", "20", "20", "-", "0", "0", "0", "1", "1", "1"],
    ]
    assert table.finding == (
        "Target: at most 25 launches, no synchronisation. "
        "5 of 6 calls have at most 25 launches, the most has nt-xent, ids on the CPU: 176. "
        "5 of 6 calls have no synchronisations, the most has nt-xent, ids on the CPU: 8."
    )


# --- training steps -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "what",
    ["VSE++, circle/sigmoid-ms", "BFAN, triplet-hard", "ViT-B/32, nt-xent"]
    + [
        pytest.param(f"{model}, triplet-hard", marks=pytest.mark.slow)
        for model in ("VSRN", "VSE-infinity")
    ],
)
def test_a_step_and_its_parts_can_be_timed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_parts, "BATCHES", 2)
    cases = [case for case in gpu_training.cases(quick=True) if case.what == what]
    assert [case.who for case in cases] == list(step_parts.PARTS)
    whole, model, objective = (gpu_training.prepare(case, "cpu") for case in cases)
    trainer, _ = gpu_training._trainer(replace(cases[0], who=""), "cpu")
    weights = next(trainer.system.model.parameters()).detach().clone()
    assert model() == ()
    assert torch.equal(weights, next(trainer.system.model.parameters())), "a rate of 0"
    before = trainer.state.step
    assert whole() == ()
    assert trainer.state.step == before + 1
    value, *gradients = objective()
    assert value.isfinite()
    assert len(gradients) == (1 if what.startswith("BFAN") else 2)
    assert all(gradient.any() for gradient in gradients)


def test_shares_of_a_step_stand_beside_their_target() -> None:
    found = Results(NOWHERE)
    for case in gpu_training.cases(quick=False):
        seconds = {"step": 0.010, "model": 0.007, "objective": 0.0012}[case.who]
        found.measured[case] = Measurement(seconds, seconds)
    case = Case("training", "objective", "BFAN, triplet-hard", 128, 1, 1024)
    found.measured[case] = Measurement(0.004, 0.004)
    (table,) = gpu_training.tables(found)
    assert len(table.rows) == 8
    row = ["VSE++, triplet-hard", "128", "10.0", "7.00", "1.20", "12.0%", "18.0%"]
    assert table.rows[0] == row
    assert table.rows[-1][:2] == ["ViT-B/32, nt-xent", "1024"]
    assert table.finding == (
        "Target: the objective takes less than 10.0% of a step of VSE++. It takes up to 12.0%. "
        "Of all, BFAN, triplet-hard at 128 has the largest share of its objective, 40.0%, and "
        "VSE++, triplet-hard at 128 of what is neither model nor objective, 18.0%."
    )


# --- which of them a run measures ---------------------------------------------------------------


def test_rows_of_a_part_can_be_measured_alone(tmp_path: Path) -> None:
    json = tmp_path / "found.json"
    batches_found().save(json)
    selection = Selection(("batches",), batches=(128, 512), objectives=("nt-xent", "siglip"))
    for date in ("tomorrow", "then"):
        found = gpu._found_before({**NOWHERE, "date": date}, selection, json)
        found.save(json)
    gone = {(case.what, case.images) for case in batches_found().measured} - {
        (case.what, case.images) for case in found.measured
    }
    assert gone == {(what, size) for what in ("nt-xent", "siglip") for size in (128, 512)}
    rows = "batches, --batch 128 --batch 512 --objective nt-xent --objective siglip"
    assert list(found.later) == [rows]
    assert f"Part {rows!r} is from a run of `make it` on then: a GPU; ." in page(found)
    whole = gpu._found_before(NOWHERE, Selection(("batches",)), json)
    assert list(whole.later) == ["batches"]
    assert not whole.measured


def test_an_objective_is_selected_with_every_model_that_trains_by_it() -> None:
    selection = Selection(("training",), objectives=("circle/sigmoid-ms",))
    selected = [case.what for case in gpu_training.cases(quick=False) if selection.takes(case)]
    assert selected == ["VSE++, circle/sigmoid-ms"] * 3


def test_rows_need_the_part_they_are_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", "--batch", "128"])
    with pytest.raises(SystemExit):
        gpu.main()
    assert (
        "--batch and --objective say which rows of a part are measured" in capsys.readouterr().err
    )


def test_a_page_of_losses_that_differ_ends_with_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = batches_found()
    found.measured[Case("batches", "ours", "siglip", 256, 1, 512)].numbers["loss"] = 3.0
    found.save(tmp_path / "found.json")
    monkeypatch.setattr(
        sys, "argv", ["benchmarks.gpu", "--from-json", str(tmp_path / "found.json")]
    )
    with pytest.raises(
        SystemExit, match=r"should be equal differ: siglip, .*: plain 2.0, ours 3.0"
    ):
        gpu.main()
