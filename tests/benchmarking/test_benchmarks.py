"""The benchmarks compare like with like: the peers and the loops compute our losses.

No test looks at a time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import gradspace as gs

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import losses, scale
from benchmarks.case import Batch, Case, Measurement, make_batch
from benchmarks.loops import loop_loss
from benchmarks.losses import DIFFERENT_IN_PML, NOT_IN_PML, ONE_SET, OURS, our_loss
from benchmarks.page import page
from benchmarks.peers import pml_loss
from benchmarks.processes import ROOT, run
from benchmarks.tables import Table

Loss = Callable[[Batch], Tensor]


@pytest.fixture
def pml() -> None:
    pytest.importorskip("pytorch_metric_learning")


def small_batch(images: int, captions: int) -> Batch:
    return make_batch(Case("losses", "-", "-", images, captions, width=16), cosine=0.6)


def value_and_gradients(loss: Loss, batch: Batch) -> list[Tensor]:
    images, texts = (x.clone().requires_grad_() for x in (batch.images, batch.texts))
    value = loss(Batch(images, texts, batch.image_ids, batch.text_ids))
    return [value.detach(), *torch.autograd.grad(value, (images, texts), materialize_grads=True)]


def assert_same_function(loss: Loss, ours: Loss, batch: Batch) -> None:
    expected = value_and_gradients(ours, batch)
    assert all(x.abs().max() > 1e-4 for x in expected[:1] + expected[2:])
    for found, wanted in zip(value_and_gradients(loss, batch), expected, strict=True):
        scale = float(wanted.abs().max())
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5 * scale)


@pytest.mark.usefixtures("pml")
@pytest.mark.parametrize("captions", [1, 5])
@pytest.mark.parametrize("what", [w for w in OURS if w not in NOT_IN_PML + DIFFERENT_IN_PML])
def test_pml_computes_our_loss(what: str, captions: int) -> None:
    assert_same_function(pml_loss(what), our_loss(what), small_batch(24, captions))


@pytest.mark.parametrize("captions", [1, 5])
@pytest.mark.parametrize("what", OURS)
def test_loops_compute_our_loss(what: str, captions: int) -> None:
    assert_same_function(loop_loss(what), our_loss(what), small_batch(24, captions))


@pytest.mark.usefixtures("pml")
def test_pml_smooth_ap_is_ours_for_as_many_classes_as_samples() -> None:
    assert_same_function(pml_loss(ONE_SET), our_loss(ONE_SET), small_batch(6, 6))


@pytest.mark.usefixtures("pml")
def test_pml_smooth_ap_takes_blocks_of_rows_for_classes() -> None:
    """With one caption per image: all images are positives of each other, and so are all texts."""
    batch = small_batch(12, 1)
    both = torch.cat([batch.images, batch.texts])
    ids = torch.cat([batch.image_ids, batch.text_ids])
    blocks = torch.arange(24) // 12
    found = pml_loss("smooth-ap")(batch)

    def ours(labels: Tensor) -> Tensor:
        return gs.objective("smooth-ap")(both @ both.t(), gs.match_ids(labels, labels)).mean()

    torch.testing.assert_close(found, ours(blocks))
    assert (found - ours(ids)).abs() > 0.1


@pytest.mark.usefixtures("pml")
def test_pml_is_silently_zero_when_both_sides_share_one_label_tensor() -> None:
    """Why the two sides of a `Batch` never do."""
    b = small_batch(12, 1)
    assert b.image_ids is not b.text_ids
    assert b.image_ids.equal(b.text_ids)
    for what in ("nt-xent", "circle"):
        assert pml_loss(what)(b) > 0.1
        assert pml_loss(what)(Batch(b.images, b.texts, b.image_ids, b.image_ids)) == 0


@pytest.mark.slow
def test_a_case_that_needs_too_much_memory_says_so() -> None:
    pytest.importorskip("pytorch_metric_learning")
    assert run(Case("losses", "pml", "smooth-ap", 4096, 1, 8)).failure == "over 16 GiB"


def test_losses_that_differ_are_reported() -> None:
    ours, pml = (Case("losses", who, "nt-xent", 16, 1, 8) for who in ("ours", "pml"))
    same, other = (Measurement(1, 1, 1, numbers={"loss": x}) for x in (1.0, 1.01))
    losses.check({ours: same, pml: same})
    with pytest.raises(ValueError, match=r"has loss 1.01, ours has 1.0"):
        losses.check({ours: same, pml: other})


def test_table_says_what_is_missing_extrapolated_or_too_much() -> None:
    ours, pml, loop = (Case("losses", w, "nt-xent", 512, 1, 8) for w in ("ours", "pml", "loop"))
    goal = replace(ours, what="circle/sigmoid-ms")
    measured = {
        ours: Measurement(0.1, 0.1, 12.34),
        pml: Measurement(failure="over 16 GiB"),
        loop: Measurement(1.5, 1.4, 5, share=0.5),
        goal: Measurement(0.2, 0.2, 12.34),
    }
    (table,) = losses.tables(measured)
    assert table.rows == [
        ["nt-xent", "512", "1", "100", "12.3", "over 16 GiB", "-", "-", "-", "~1500", "15.0"],
        ["circle/sigmoid-ms", "512", "1", "200", "12.3", "-", "-", "-", "-", "-", "-"],
    ]


def test_scaled_losses_that_differ_are_reported() -> None:
    streamed, dense, pml = (
        Case("scale", who, "nt-xent", 16, 1, 8) for who in ("streamed", "dense", "pml")
    )
    ours = scale.prepare(streamed).run()
    same = Measurement(1, 1, 1, numbers=ours)
    other = Measurement(1, 1, 1, numbers=ours | {"gradient": 2 * ours["gradient"]})
    scale.check({streamed: same, dense: same, pml: other})  # of PML only the loss is the same
    scale.check({pml: same})  # ours is computed where there is no row of it
    with pytest.raises(ValueError, match="has gradient"):
        scale.check({streamed: same, dense: other})
    with pytest.raises(ValueError, match="has loss 0"):
        scale.check({pml: replace(same, numbers={"loss": 0.0})})


def test_scale_shows_the_largest_batch_that_a_peer_can_compute() -> None:
    measured = {
        case: Measurement(failure="over 16 GiB")
        if case.who == "pml" and case.images > 1024
        else Measurement(case.images / 1000 * (1 if case.who == "product" else 2), 1, 10)
        for case in scale.cases(quick=False)
    }
    large, scaling = scale.tables(measured)
    assert large.rows[0] == [
        "one bare matrix product (the floor)",
        "16,384",
        "16.4",
        "1.00",
        "10.0",
    ]
    assert large.rows[-2:] == [
        ["nt-xent, PML", "16,384", "over 16 GiB", "-", "-"],
        ["nt-xent, PML", "1,024", "2.05", "2.00", "10.0"],
    ]
    assert len(large.rows) == 1 + 3 + 2 + 2
    sizes = ["1,024", "2,048", "4,096", "8,192", "16,384", "32,768"]
    assert [row[:2] for row in scaling.rows] == [
        [what, size] for what in ("triplet-hard", "nt-xent") for size in sizes
    ]


def test_page_starts_with_the_command_and_the_machine() -> None:
    pytest.importorskip("pytorch_metric_learning")
    pytest.importorskip("faiss")
    lines = page("make it", [Table("Losses", ["a", "b"], [["1", "2"]])]).splitlines()
    assert lines[0] == "# Benchmarks"
    assert lines[2].startswith("Written by `make it` on ")
    assert "| 1 | 2 |" in lines


@pytest.mark.slow
def test_quick_run_from_end_to_end(tmp_path: Path) -> None:
    pytest.importorskip("pytorch_metric_learning")
    pytest.importorskip("faiss")
    command = [sys.executable, "-m", "benchmarks", "--quick", "--json", str(tmp_path / "all.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Evaluation: 200 images x 1,000 texts" in done.stdout
    cases = json.loads((tmp_path / "all.json").read_text())["cases"]
    found = {(c["case"]["suite"], c["case"]["who"]) for c in cases}
    assert found >= {("losses", who) for who in ("ours", "pml", "loop")}
    assert found >= {("scale", who) for who in ("product", "streamed", "dense", "pml")}
    assert found >= {("evaluation", who) for who in ("product", "ours", "faiss", "loop")}
    for case in cases:
        assert case["measured"]["failure"] is None
        assert case["measured"]["seconds"] > 0
        assert case["measured"]["megabytes"] >= 0
