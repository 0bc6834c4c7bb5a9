"""What every registered objective owes its users; new ones are tested here unasked."""

from __future__ import annotations

import shutil

import pytest
import torch
from samples import FORMULAS, STATISTICS, Batch
from torch import Tensor

import gradspace as gs
from gradspace.scores.positives import match_mask


def gradient(objective: gs.Objective, scores: Tensor, positives: Tensor) -> Tensor:
    return gs.score_weights(objective, scores, positives)


def test_says_what_it_is_and_where_it_is_from(name: str) -> None:
    info = next(info for info in gs.list_objectives() if info.name == name)
    assert info.summary
    assert any(character.isdigit() for character in info.source), "an equation number or a year"
    objective = gs.objective(name)
    assert objective.name == name
    assert objective.reduction in ("sum", "mean")
    assert gs.objective(name, **info.parameters) == gs.objective(name)


def test_value_per_query_and_nothing_without_positives(name: str, batch: Batch) -> None:
    scores, positives = batch(0)
    value = gs.objective(name)(scores, positives)
    assert value.shape == (len(scores),)
    assert value[0] == 0
    assert not gradient(gs.objective(name), scores, positives)[0].any()


def test_a_batch_without_positives_or_negatives_is_finite(name: str, batch: Batch) -> None:
    scores, positives = batch(1)
    for mask in (torch.zeros_like(positives), torch.ones_like(positives)):
        assert gs.objective(name)(scores, mask).isfinite().all()
        assert gradient(gs.objective(name), scores, mask).isfinite().all()


def test_gradients_are_finite(name: str, batch: Batch) -> None:
    """Check cosines, and the sums of two cosines that some scorers return."""
    scores, positives = batch(2)
    for size in (1, 2):
        weights = gradient(gs.objective(name), (size * scores).float(), positives)
        assert weights.isfinite().all()


def test_negatives_are_pushed_and_single_positives_pulled(name: str, batch: Batch) -> None:
    scores, _ = batch(3)
    positives = torch.eye(len(scores), scores.shape[1], dtype=torch.bool)
    weights = gradient(gs.objective(name), scores.abs() % 1, positives)
    assert (weights[positives] <= 0).all()
    assert (weights[~positives] >= 0).all()
    assert weights.any()


def test_order_of_queries_and_candidates_does_not_matter(name: str, batch: Batch) -> None:
    scores, positives = batch(4)
    rows, columns = torch.randperm(len(scores)), torch.randperm(scores.shape[1])
    objective = gs.objective(name)
    permuted, mask = scores[rows][:, columns], positives[rows][:, columns]
    torch.testing.assert_close(objective(permuted, mask), objective(scores, positives)[rows])
    torch.testing.assert_close(
        gradient(objective, permuted, mask),
        gradient(objective, scores, positives)[rows][:, columns],
    )


def test_slots_and_masks_are_the_same_positives(name: str, batch: Batch) -> None:
    scores, positives = batch(5)
    objective = gs.objective(name)
    assert torch.equal(objective(scores, positives), objective(scores, match_mask(positives)))


def test_transposed_scores_need_no_copy(name: str, batch: Batch) -> None:
    scores, positives = batch(6)
    objective = gs.objective(name)
    copied = objective(scores.t().contiguous(), positives.t().contiguous())
    torch.testing.assert_close(objective(scores.t(), positives.t()), copied)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", STATISTICS)
def test_half_precision_scores_are_computed_in_float32(
    name: str, batch: Batch, dtype: torch.dtype
) -> None:
    scores, positives = batch(7)
    half = scores.to(dtype).requires_grad_()
    value = gs.objective(name)(half, positives)
    assert value.dtype == torch.float32
    assert torch.equal(value, gs.objective(name)(half.float(), positives))
    (weights,) = torch.autograd.grad(value.sum(), half)
    assert weights.dtype == dtype


def test_float32_is_close_to_float64(name: str, batch: Batch) -> None:
    scores, positives = batch(8)
    objective = gs.objective(name)
    single = objective(scores.float(), positives)
    torch.testing.assert_close(single.double(), objective(scores, positives), rtol=1e-4, atol=1e-4)


def test_true_losses_pass_gradcheck(name: str, batch: Batch) -> None:
    objective = gs.objective(name)
    if not objective.is_loss:
        held = name in ("circle", "smooth", "adaptive-offline-quintuplet") or "/" in name
        assert held, "only these hold parts of their value constant"
        return
    scores, positives = batch(9)
    scores.requires_grad_()
    assert torch.autograd.gradcheck(lambda s: objective(s, positives), (scores,), eps=1e-7)


def test_the_incoming_gradient_multiplies(name: str, batch: Batch) -> None:
    scores, positives = batch(10)
    scores.requires_grad_()
    value = gs.objective(name)(scores, positives)
    incoming = torch.linspace(-2, 3, len(value), dtype=value.dtype)
    (found,) = torch.autograd.grad(value, scores, incoming, retain_graph=True)
    (again,) = torch.autograd.grad(value, scores, incoming)
    expected = incoming[:, None] * gradient(gs.objective(name), scores, positives)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    assert torch.equal(found, again)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMULAS)
def test_compiles_without_a_graph_break(name: str) -> None:
    """The whole loss, forward and backward, as one graph, when pairs go by position."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    images, texts = torch.randn(2, 6, 5, dtype=torch.float64).unbind()
    loss = gs.RetrievalLoss(gs.objective(name), normalize=True)
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    results = []
    for function in (loss, compiled):
        leaf = images.clone().requires_grad_()
        value = function(leaf, texts)
        value.backward()
        results.append((value, leaf.grad))
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("compiled_name", ["nt-xent", "circle/sigmoid-ms"])
def test_compiled_code_gives_the_same_numbers(compiled_name: str) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    images, texts = torch.randn(2, 16, 8).unbind()
    ids = torch.arange(16) // 2
    loss = gs.RetrievalLoss(gs.objective(compiled_name), normalize=True)
    compiled = torch.compile(loss)
    torch.testing.assert_close(
        compiled(images, texts, ids, ids), loss(images, texts, ids, ids), rtol=1e-4, atol=1e-5
    )
