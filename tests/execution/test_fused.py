"""The Triton kernels, in Triton's interpreter where there is no GPU: small, and the same code."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from embedded import embedded, outcome
from interpreted import patch_once
from samples import FORMULAS, NAMES, STATISTICS
from torch import Tensor

import gradspace as gs

pytest.importorskip("triton")

from gradspace.execution import choice
from gradspace.execution.block import Block, Upstream
from gradspace.execution.triton import backward, forward, fused, launching, slots, tiled, whole_rows
from gradspace.execution.triton.fused import Fused
from gradspace.execution.triton.launching import Tile
from gradspace.objectives.contract import Objective, Reduction
from gradspace.objectives.statistics import Hardest, PositiveScores, Statistic, Sum

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="needs Triton's interpreter")


@pytest.fixture(params=["rows", "tiles", "lists"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whole rows of scores, tiles with weights in chunks, or tiles with lists of single weights."""
    wanted: str = request.param
    found = wanted if wanted != "lists" else None
    monkeypatch.setattr(choice, "choose_kernels", lambda *_, **__: found)
    return wanted


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tiles as small as Triton allows, several chunks of them, and CPU tensors for GPU ones."""
    patch_once(monkeypatch)
    monkeypatch.setattr(launching, "FLOAT32", (Tile(16, 32, 16, 1, 1),))
    monkeypatch.setattr(slots, "QUERIES", 16)
    monkeypatch.setattr(slots, "CANDIDATES", 16)
    monkeypatch.setattr(launching, "RECOVER", Tile(16, 0, 16, 1, 1))
    monkeypatch.setattr(forward, "CHUNK_BYTES", 4 * 16 * 40)
    for module in (backward, tiled):
        monkeypatch.setattr(module, "WEIGHT_BYTES", 4 * 64 * 20)
    monkeypatch.setattr(fused, "is_available", lambda values: values.dtype in fused.DTYPES)
    with np.errstate(all="ignore"):  # the interpreter is NumPy: exp(-inf) and the like are meant
        yield


EVERY_KIND = [
    *(pytest.param("rows", name, 6, id=f"rows-{name}") for name in NAMES),
    *(pytest.param("tiles", name, 20, id=f"tiles-{name}") for name in FORMULAS),
    *(pytest.param("lists", name, 6, id=f"lists-{name}") for name in STATISTICS),
]
"""What each kind of kernel has code of its own for."""


@pytest.mark.slow
@pytest.mark.parametrize(("kernels", "name", "width"), EVERY_KIND, indirect=["kernels"])
@pytest.mark.usefixtures("kernels")
def test_every_objective_is_that_of_the_matrix(name: str, width: int) -> None:
    batch = embedded(num_images=37, num_texts=45, width=width, dtype=torch.float32)
    exact = batch._replace(images=batch.images.double(), texts=batch.texts.double())
    expected = outcome(gs.RetrievalLoss(name, execution="dense"), exact, scale=2.5)
    found = outcome(gs.RetrievalLoss(name, execution="triton"), batch, scale=2.5)
    assert_close(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["rows", "tiles"], indirect=True)
@pytest.mark.parametrize("name", STATISTICS)
@pytest.mark.usefixtures("kernels")
def test_pairs_by_position(name: str) -> None:
    batch = embedded(num_images=37, num_texts=37, dtype=torch.float32)
    exact = batch._replace(images=batch.images.double(), texts=batch.texts.double())
    how: dict[str, Any] = {"positives": "position", "reduction": "mean"}
    expected = outcome(gs.RetrievalLoss(name, execution="dense", **how), exact)
    assert_close(outcome(gs.RetrievalLoss(name, execution="triton", **how), batch), expected)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", ["triplet-hard", "nt-xent", "smooth-ap", "circle/sigmoid-ms"])
def test_whole_tiles_need_no_mask(name: str) -> None:
    batch = embedded(num_images=32, num_texts=64, width=16, dtype=torch.float32)
    exact = batch._replace(images=batch.images.double(), texts=batch.texts.double())
    expected = outcome(gs.RetrievalLoss(name, execution="dense"), exact)
    assert_close(outcome(gs.RetrievalLoss(name, execution="triton"), batch), expected)


@pytest.mark.slow
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", ["nt-xent", "multi-similarity", "circle"])
def test_exponentials_that_one_reference_cannot_serve(name: str) -> None:
    batch = embedded(num_images=37, num_texts=45, length=2.0, dtype=torch.float32)
    exact = batch._replace(images=batch.images.double(), texts=batch.texts.double())
    expected = outcome(gs.RetrievalLoss(name, execution="dense", normalize=False), exact)
    assert_close(
        outcome(gs.RetrievalLoss(name, execution="triton", normalize=False), batch), expected
    )


@pytest.mark.usefixtures("kernels")
def test_ids_of_any_size() -> None:
    batch = embedded(num_images=20, num_texts=30, dtype=torch.float32)
    large = batch._replace(image_ids=batch.image_ids << 40, text_ids=batch.text_ids << 40)
    loss = gs.RetrievalLoss("triplet-hard", execution="triton")
    torch.testing.assert_close(outcome(loss, large), outcome(loss, batch))


@pytest.mark.slow
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", ["triplet-hard", "nt-xent", "smooth-ap", "circle/sigmoid-ms"])
def test_several_backward_passes_give_the_same_bits(name: str) -> None:
    batch = embedded(dtype=torch.float32)
    images, texts = batch.images.clone().requires_grad_(), batch.texts.clone().requires_grad_()
    value = gs.RetrievalLoss(name, execution="triton")(images, texts, *batch[2:])
    first, second = (
        torch.autograd.grad(value, (images, texts), retain_graph=True) for _ in range(2)
    )
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    with torch.no_grad():
        again = gs.RetrievalLoss(name, execution="triton")(images, texts, *batch[2:])
    assert torch.equal(again, value)


def test_kernels_are_chosen_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, objective = embedded(dtype=torch.float32), gs.objective("nt-xent")

    def chosen(name: str = "nt-xent") -> str | None:
        return choice.choose_kernels(gs.objective(name), batch.images, batch.texts, chosen=True)

    assert chosen() == "rows"
    monkeypatch.setattr(whole_rows, "MOST", 40)
    assert chosen() == chosen("triplet") == "tiles"
    monkeypatch.setattr(tiled, "MOST_BY_SLOT", 1000)
    assert (chosen(), chosen("triplet")) == ("tiles", None)
    monkeypatch.setattr(tiled, "MOST", 1000)
    assert chosen() is None
    gradient = torch.func.grad(gs.RetrievalLoss(objective))(batch.images, batch.texts, *batch[2:])
    torch.testing.assert_close(gradient, outcome(gs.RetrievalLoss(objective), batch).by_images)


@pytest.mark.parametrize("name", ["triplet-hard", "nt-xent", "smooth-ap", "circle/sigmoid-ms"])
def test_scores_of_any_origin(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = embedded(dtype=torch.float32)
    scores = (batch.images @ batch.texts.t()).requires_grad_()
    results = []
    for available in (True, False):
        monkeypatch.setattr(fused, "is_available", lambda _, found=available: found)
        value = gs.RetrievalLoss(name).of_scores(scores, *batch[2:])
        results.append((value.detach(), *torch.autograd.grad(2 * value, scores)))
    assert_close(results[0], results[1])


def test_a_batch_without_a_pair_has_no_gradient() -> None:
    """On a GPU it is an error one batch later."""
    batch = embedded(dtype=torch.float32)
    found = outcome(
        gs.RetrievalLoss("nt-xent", execution="triton"),
        batch._replace(text_ids=batch.text_ids + 1000),
    )
    assert not any(part.any() for part in found)


@pytest.mark.slow
def test_memory_of_one_side() -> None:
    """Blocks of which only the rows, or only the columns, ask for something."""
    first, second = (embedded(seed=seed, dtype=torch.float32) for seed in (1, 2))
    for name in ("circle/sigmoid-ms", "triplet"):
        values = []
        for execution in ("triton", "streamed"):
            loss = gs.RetrievalLoss(name, execution=execution, memory=50)
            outcome(loss, first)
            values.append(outcome(loss, second))
        assert_close(values[0], values[1])


def assert_close(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    """Within float32, in the norm: a score at a kink may fall to either side."""
    for got, wanted in zip(found, expected, strict=True):
        error = (got.double() - wanted.double()).norm()
        assert error <= 3e-4 * wanted.norm() + 1e-6


# --- pairs --------------------------------------------------------------------------------------


def test_pairs() -> None:
    batch = embedded(num_images=9, num_texts=9, width=300, dtype=torch.float32)
    row, column = torch.randint(0, 9, (2, 40), generator=torch.Generator().manual_seed(0)).unbind()
    row[:12] = 4  # one that is in many pairs
    weights = torch.linspace(-1, 1, 40)
    found = fused.pair_scores(batch.images, batch.texts, row, column)
    torch.testing.assert_close(found, (batch.images @ batch.texts.t())[row, column])
    sums = fused.weighted_sums(weights, batch.texts, column, row, 9)
    expected = torch.zeros(9, 300).index_add_(0, row, weights[:, None] * batch.texts[column])
    torch.testing.assert_close(sums, expected)
    assert torch.equal(sums, fused.weighted_sums(weights, batch.texts, column, row, 9))


# --- formulas -----------------------------------------------------------------------------------


def statistics_of(name: str) -> list[Statistic]:
    positive = PositiveScores(
        torch.tensor([[0.3, 0.6]]),
        torch.ones(1, 2, dtype=torch.bool),
        torch.ones(1, 1),
        torch.tensor([0.3, 0.6]),
    )
    return list(gs.objective(name).statistics(positive))


TERMS = [
    pytest.param(statistic, id=f"{name}-{number}")
    for name in NAMES
    for number, statistic in enumerate(statistics_of(name))
    if not isinstance(statistic, Hardest)
]


@pytest.mark.parametrize("statistic", TERMS)
def test_translated_formulas(statistic: Any) -> None:
    from triton_terms import evaluate

    from gradspace.execution.triton.terms import translate

    translated = translate(statistic.term, 0.0 if isinstance(statistic, Sum) else -1e30)
    s = torch.linspace(-1, 1, 16).repeat(16, 1)
    given = statistic.given[0, 0].detach().item()
    leaf, g = s.double().requires_grad_(), torch.full_like(s, given).double().requires_grad_()
    value = statistic.term(leaf, g)
    slopes: list[Any] = [None, None]
    if value.requires_grad:
        one = torch.ones_like(value)
        slopes = list(torch.autograd.grad(value, (leaf, g), one, allow_unused=True))
    found = evaluate(translated.term, translated.derivatives, s, given)
    expected = [value, *(torch.zeros_like(leaf) if slope is None else slope for slope in slopes)]
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(got, wanted.detach().float(), rtol=2e-5, atol=2e-5)


class Unusual(Objective):
    """Uses an operation that has no translation."""

    name = "unusual"
    reduction: Reduction = "sum"  # type: ignore[misc]

    def statistics(self, positive: PositiveScores) -> tuple[Statistic, ...]:
        return (Sum(lambda s, _: torch.erf(s) + 1, positive.nothing),)

    def value(self, positive: PositiveScores, *statistics: Tensor) -> Tensor:
        return statistics[0].squeeze(1) - positive.sum(positive.scores)


def test_a_formula_without_translation_is_streamed_with_one_warning() -> None:
    batch = embedded(dtype=torch.float32)
    fused._warn.cache_clear()
    with pytest.warns(UserWarning, match="aten.erf.default") as warned:
        found = outcome(gs.RetrievalLoss(Unusual(), execution="triton"), batch)
    assert len(warned) == 1
    expected = outcome(gs.RetrievalLoss(Unusual(), execution="dense"), batch)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kernels", ["lists"], indirect=True)
@pytest.mark.usefixtures("kernels")
def test_a_kernel_that_does_not_compile_is_streamed_with_one_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from triton.compiler.errors import CompilationError

    def fail(*_: object) -> None:
        raise CompilationError("def kernel(): pass", None, "no such instruction")

    batch = embedded(dtype=torch.float32)
    monkeypatch.setattr(forward, "_pass_with", fail)
    monkeypatch.setattr(backward, "_backward_with", fail)
    fused._warn.cache_clear()
    loss = gs.RetrievalLoss("nt-xent", execution="triton")
    with pytest.warns(UserWarning, match="using the streamed execution instead") as warned:
        found = outcome(loss, batch)
    outcome(loss, batch)  # warnings are errors here
    assert len(warned) == 1
    torch.testing.assert_close(
        found, outcome(gs.RetrievalLoss("nt-xent", execution="dense"), batch)
    )


@pytest.mark.usefixtures("kernels")
def test_without_a_compiler_all_kernels_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable")

    monkeypatch.setattr(forward, "_pass_with", fail)
    monkeypatch.setattr(backward, "_backward_with", fail)
    for module, name in ((whole_rows, "_weigh"), (tiled, "partial_results")):
        monkeypatch.setattr(module, name, fail)
    monkeypatch.setattr(fused, "pair_scores", fail)
    monkeypatch.setattr(fused, "weighted_sums", fail)
    batch = embedded(dtype=torch.float32)
    fused._warn.cache_clear()
    with pytest.warns(UserWarning, match="Failed to find C compiler") as warned:
        found = outcome(gs.RetrievalLoss("nt-xent", execution="triton"), batch)
    assert len(warned) == 1
    expected = outcome(gs.RetrievalLoss("nt-xent", execution="dense"), batch)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kernels", ["lists"], indirect=True)
@pytest.mark.usefixtures("kernels")
def test_a_tile_that_is_too_large_for_the_device_gives_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from triton.runtime.errors import OutOfResources

    tried = []
    original = forward._pass_with

    def on_a_small_device(tile: Tile, *others: Any) -> Any:
        tried.append(tile)
        if tile != launching.SMALLEST:
            raise OutOfResources(1, 0, "shared memory")
        return original(Tile(16, 32, 16, 1, 1), *others)

    monkeypatch.setattr(forward, "_pass_with", on_a_small_device)
    batch = embedded(dtype=torch.float32)
    loss = gs.RetrievalLoss("siglip", execution="triton")
    for _ in range(2):
        outcome(loss, batch)
    assert tried == [*launching.FLOAT32, launching.SMALLEST, launching.SMALLEST]
    launching._too_large.clear()


def test_parameters_are_part_of_a_formula() -> None:
    batch = embedded(dtype=torch.float32)
    for temperature in (0.1, 0.5):
        objective = gs.objective("nt-xent", temperature=temperature)
        found = outcome(gs.RetrievalLoss(objective, execution="triton"), batch)
        assert_close(found, outcome(gs.RetrievalLoss(objective, execution="dense"), batch))


def test_what_backward_does_not_ask_for_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums of the MS weights are constants of the step."""

    def fail(self: Fused, block: Block, upstream: list[Upstream]) -> None:
        pytest.fail("a mined objective has no dense weights")

    monkeypatch.setattr(Fused, "backward", fail)
    monkeypatch.setattr(choice, "choose_kernels", lambda *_, **__: None)
    batch = embedded(dtype=torch.float32)
    found = outcome(gs.RetrievalLoss("circle/sigmoid-ms", execution="triton"), batch)
    assert math.isfinite(float(found.value))
