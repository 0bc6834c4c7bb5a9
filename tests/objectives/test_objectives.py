"""Every objective against its plain-loop oracle, and the equivalences of GOAL Table 1."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import GOAL_NAMES, LOSS_NAMES, random_batch
from torch import Tensor

import gradspace as gs
from gradspace.objectives import registry
from gradspace.parameters import checked, parameters_of

PARAMETERS: dict[str, list[dict[str, Any]]] = {
    "triplet": [{}, {"margin": 0.5}],
    "triplet-hard": [{}, {"margin": 0}],
    "triplet-soft": [{}, {"margin": 0, "temperature": 0.2}],
    "nt-xent": [{}, {"temperature": 0.05}],
    "smooth-ap": [{}, {"temperature": 0.1}],
    "circle": [{}, {"scale": 8.0, "margin": 0.4}],
    "multi-similarity": [{}, {"epsilon": None, "beta": 40.0, "base": 1.0}],
    "binomial-deviance": [{}, {"alpha": 3.0, "beta": 25.0, "base": 0.2}],
    "siglip": [{}, {"scale": 3.0, "bias": -1.0}],
}

batches = st.builds(
    random_batch,
    seed=st.integers(0, 10**6),
    num_queries=st.integers(2, 6),
    num_candidates=st.integers(4, 9),
    ties=st.booleans(),
)


def float64(values: list[Any]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def weights(name: str, scores: Tensor, positives: Tensor, **parameters: Any) -> Tensor:
    return gs.score_weights(gs.objective(name, **parameters), scores, positives)


@pytest.mark.parametrize(
    ("name", "parameters"), [(name, p) for name in LOSS_NAMES for p in PARAMETERS.get(name, [{}])]
)
@settings(max_examples=40, deadline=None)
@given(batch=batches)
def test_losses_equal_their_loops(
    name: str, parameters: dict[str, Any], batch: tuple[Tensor, Tensor]
) -> None:
    scores, positives = batch
    expected = oracles.loss_values(name, scores.tolist(), positives.tolist(), **parameters)
    value = gs.objective(name, **parameters)(scores, positives)
    torch.testing.assert_close(value, float64(expected), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", GOAL_NAMES)
@settings(max_examples=60, deadline=None)
@given(batch=batches)
def test_goal_gradients_equal_the_weights(name: str, batch: tuple[Tensor, Tensor]) -> None:
    scores, positives = batch
    expected = oracles.goal_weights(name, scores.tolist(), positives.tolist())
    torch.testing.assert_close(
        weights(name, scores, positives), float64(expected), rtol=1e-12, atol=1e-12
    )


@settings(max_examples=60, deadline=None)
@given(batch=batches)
def test_circle_weights_equal_the_papers(batch: tuple[Tensor, Tensor]) -> None:
    scores, positives = batch
    found = weights("circle", scores, positives)
    for row, mask, w in zip(scores, positives, found, strict=True):
        if not mask.any() or mask.all():
            assert not w.any()
            continue
        on_p, on_n = oracles.circle_weights(*oracles.split(row.tolist(), mask.tolist()))
        torch.testing.assert_close(w[mask], float64(on_p), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(w[~mask], float64(on_n), rtol=1e-9, atol=1e-12)


# --- GOAL Table 1: which cells are known losses -------------------------------------------------


@pytest.fixture
def one_negative() -> tuple[Tensor, Tensor]:
    """One positive and one negative per query, the gate of the constant triplet weight open."""
    p = torch.linspace(-0.2, 0.6, 9, dtype=torch.float64)
    scores = torch.stack([p, p + 0.3], 1)
    return scores, torch.tensor([[True, False]]).expand(9, 2)


@pytest.mark.parametrize("seed", range(5))
def test_constant_constant_is_the_hardest_triplet_loss(seed: int) -> None:
    scores, positives = random_batch(seed)
    torch.testing.assert_close(
        weights("constant/constant", scores, positives, margin=0.3),
        weights("triplet-hard", scores, positives, margin=0.3),
        rtol=0,
        atol=0,
    )


@pytest.mark.parametrize("seed", range(5))
def test_nca_constant_is_hardest_nt_xent_over_its_scale(seed: int) -> None:
    scores, positives = random_batch(seed)
    scores.requires_grad_()
    total = scores.new_zeros(())
    for row, mask in zip(scores, positives, strict=True):
        for p in row[mask] if not mask.all() else ():
            n = row[~mask].max()
            total = total - torch.log(torch.exp(7 * p) / (torch.exp(7 * p) + torch.exp(7 * n)))
    (expected,) = torch.autograd.grad(total, scores)
    found = weights("nca/constant", scores, positives, scale=7.0)
    torch.testing.assert_close(found, expected / 7, rtol=1e-10, atol=1e-12)


def test_circle_linear_is_circle_loss_up_to_its_scale(one_negative: tuple[Tensor, Tensor]) -> None:
    circle = weights("circle", *one_negative, scale=12.0, margin=0.0)
    cell = weights("circle/linear", *one_negative, scale=12.0, offset=1.0)
    torch.testing.assert_close(circle, 12 * cell, rtol=1e-12, atol=1e-12)


def test_constant_sigmoid_is_binomial_deviance(one_negative: tuple[Tensor, Tensor]) -> None:
    torch.testing.assert_close(
        weights("constant/sigmoid", *one_negative), weights("binomial-deviance", *one_negative)
    )


def test_constant_sigmoid_ms_is_multi_similarity() -> None:
    """Where no other pair is in a relative set: a single query at a time."""
    for p in (-0.2, 0.1, 0.5):
        scores = torch.tensor([[p, p + 0.05]], dtype=torch.float64)
        positives = torch.tensor([[True, False]])
        torch.testing.assert_close(
            weights("constant/sigmoid-ms", scores, positives),
            weights("multi-similarity", scores, positives),
        )


def test_ms_weights_without_relatives_are_the_plain_ones() -> None:
    scores = torch.tensor([[0.4, 0.35]], dtype=torch.float64)
    positives = torch.tensor([[True, False]])
    for ms, plain in (("sigmoid-ms", "sigmoid"), ("linear-ms", "linear")):
        torch.testing.assert_close(
            weights(f"nca/{ms}", scores, positives), weights(f"nca/{plain}", scores, positives)
        )


def test_table_of_multi_positive_nt_xent() -> None:
    """Two positives at 0.5 and one negative at 0.5: each term is log 2."""
    scores = torch.tensor([[0.5, 0.5, 0.5]])
    value = gs.objective("nt-xent")(scores, torch.tensor([[True, True, False]]))
    assert value.item() == pytest.approx(math.log(2))


def test_constant_triplet_weight_without_a_margin_is_always_open() -> None:
    scores, positives = torch.tensor([[0.9, 0.1]]), torch.tensor([[True, False]])
    assert weights("constant/constant", scores, positives).tolist() == [[0, 0]]
    assert weights("constant/constant", scores, positives, margin=None).tolist() == [[-1, 1]]


# --- properties ---------------------------------------------------------------------------------

MINED = ["triplet-hard", *GOAL_NAMES]


@pytest.mark.parametrize("name", MINED)
@settings(max_examples=20, deadline=None)
@given(batch=batches)
def test_a_far_negative_changes_nothing_for_mined_objectives(
    name: str, batch: tuple[Tensor, Tensor]
) -> None:
    scores, positives = batch
    positives[positives.all(1)] = False  # a query without negatives would get its first one
    far = scores.new_full((len(scores), 1), -3.0)
    more_scores = torch.cat([scores, far], 1)
    more_positives = torch.cat([positives, positives.new_zeros(len(scores), 1)], 1)
    torch.testing.assert_close(
        weights(name, more_scores, more_positives)[:, :-1], weights(name, scores, positives)
    )


@pytest.mark.parametrize("name", ["triplet", "triplet-hard", "nt-xent", "smooth-ap"])
@settings(max_examples=20, deadline=None)
@given(batch=batches, shift=st.floats(-2, 2))
def test_scores_shifted_by_a_constant_change_nothing(
    name: str, batch: tuple[Tensor, Tensor], shift: float
) -> None:
    scores, positives = batch
    value = gs.objective(name)
    torch.testing.assert_close(
        value(scores + shift, positives), value(scores, positives), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize(
    ("weight", "got"),
    [
        (lambda p, n: p, "a Tensor"),
        (lambda p, n: (p, n, n), "3"),
        (lambda p, n: None, "a NoneType"),
    ],
)
@pytest.mark.parametrize("num_queries", [2, 3])
def test_a_pair_weight_must_return_two(weight: Any, got: str, num_queries: int) -> None:
    """Two queries: one tensor of two rows would pass for two tensors."""
    objective: Any = replace(gs.objective("nca/linear"), pair_weight=weight)  # type: ignore[type-var]
    with pytest.raises(ValueError, match=f"pair weight 'linear' must return two .* got {got}$"):
        objective(torch.rand(num_queries, 4), torch.eye(num_queries, 4) > 0)


def test_a_pair_weight_that_is_a_score_itself_is_held_constant() -> None:
    objective: Any = replace(
        gs.objective("constant/linear", margin=None),  # type: ignore[type-var]
        pair_weight=lambda p, n: (1 - p, n),
    )
    scores = torch.tensor([[0.5, 0.25]])
    expected = torch.tensor([[-0.5, 0.25]])
    torch.testing.assert_close(gs.score_weights(objective, scores, torch.eye(1, 2) > 0), expected)


def test_weights_that_join_have_one_default_for_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "TRIPLET_WEIGHTS", dict(registry.TRIPLET_WEIGHTS))

    def power(p: Tensor, n: Tensor, *, alpha: float = 0.5) -> Tensor:
        """((1 + n - p) / 2) ** alpha"""
        return ((1 + n - p) / 2) ** alpha

    with pytest.raises(ValueError, match=r"'alpha' of 'power' is 0.5 by default, .* is 2.0"):
        registry.triplet_weight("power", source="made up")(power)


def test_a_parameter_without_a_type_is_not_checked() -> None:
    def plain(*, width=0.3):  # type: ignore[no-untyped-def]
        return width

    assert checked("plain", parameters_of(plain), {"width": "wide"}) == {"width": "wide"}


def test_objectives_can_be_keys(name: str) -> None:
    assert {gs.objective(name): 1}[gs.objective(name)] == 1
