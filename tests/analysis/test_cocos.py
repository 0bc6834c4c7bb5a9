"""COCOS counts, against loops and against what the objectives are known to do."""

from __future__ import annotations

import math
from typing import Any

import oracles
import pytest
import torch
from samples import GOAL_NAMES, Batch, random_batch
from torch import Tensor

import gradspace as gs
from gradspace.scores.positives import match_mask


def loop_cocos(weights: list[list[float]], mask: list[list[bool]], epsilon: float) -> gs.Cocos:
    """From the weights, written out."""
    counts, sums, positives, effective = [], [], [], []
    for row, row_mask in zip(weights, mask, strict=True):
        on_p, on_n = oracles.split([abs(w) for w in row], row_mask)
        counts.append(sum(w > epsilon for w in on_n))
        if on_p:
            sums.append(sum(w for w in on_n if w > epsilon))
            positives.append(sum(on_p) / len(on_p))
        if any(on_n):
            effective.append(sum(on_n) ** 2 / sum(w * w for w in on_n))
    some = [count for count in counts if count]
    return gs.Cocos(
        per_query=sum(some) / len(some) if some else 0,
        per_batch=sum(counts),
        queries_without=counts.count(0),
        negative_weight=sum(sums) / len(sums),
        positive_weight=sum(positives) / len(positives),
        effective=sum(effective) / len(effective) if effective else 0,
    )


@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.5])
@pytest.mark.parametrize(
    "name", ["triplet", "triplet-hard", "nt-xent", "circle", "siglip", *GOAL_NAMES]
)
def test_counts_equal_the_loop(name: str, epsilon: float, batch: Batch) -> None:
    scores, positives = batch(3)
    objective = gs.objective(name)
    weights = gs.score_weights(objective, scores, positives)
    expected = loop_cocos(weights.tolist(), positives.tolist(), epsilon)
    found = gs.cocos(objective, scores, positives, epsilon)
    assert vars(found) == pytest.approx(vars(expected), rel=1e-12)


def test_half_precision_is_counted_in_float32() -> None:
    scores = torch.rand(12, 300, generator=torch.Generator().manual_seed(0)).bfloat16()
    positives = torch.zeros(12, 300, dtype=torch.bool)
    positives[:, :3] = True
    assert gs.cocos("smooth-ap", scores, positives) == gs.cocos(
        "smooth-ap", scores.float(), positives
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("epsilon", [0.01, 1.0])
def test_smooth_ap_counts_triplets(seed: int, epsilon: float) -> None:
    scores, positives = random_batch(seed, ties=seed % 2 == 0)
    counts = [
        oracles.smooth_ap_triplets(row, mask, epsilon)
        for row, mask in zip(scores.tolist(), positives.tolist(), strict=True)
    ]
    found = gs.cocos(gs.objective("smooth-ap"), scores, positives, epsilon)
    some = [count for count in counts if count]
    assert found.per_query == pytest.approx(sum(some) / len(some))
    assert found.per_batch == pytest.approx(sum(counts))
    assert found.queries_without == counts.count(0)


@pytest.fixture
def pairs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.rand(32, 32, dtype=torch.float64), torch.eye(32, dtype=torch.bool)


def test_the_hardest_triplet_counts_one_negative(pairs: tuple[Tensor, Tensor]) -> None:
    """ICR eq. 10 and Table 2: C^q is 1, C^B the queries that violate the margin."""
    scores, positives = pairs
    found = gs.cocos(gs.objective("triplet-hard"), scores, positives)
    n = scores.masked_fill(positives, -1).amax(1)
    violating = int((scores.diagonal() - n < 0.2).sum())
    assert (found.per_query, found.effective) == (1, 1)
    assert found.per_batch == violating
    assert found.queries_without == 32 - violating


def test_all_triplets_count_the_violations(pairs: tuple[Tensor, Tensor]) -> None:
    scores, positives = pairs
    violations = ((scores.diagonal()[:, None] - scores < 0.2) & ~positives).sum()
    found = gs.cocos(gs.objective("triplet"), scores, positives)
    assert found.per_batch == violations
    assert found.negative_weight == pytest.approx(found.positive_weight)


def test_nt_xent_weights_are_the_softmax_over_t(pairs: tuple[Tensor, Tensor]) -> None:
    """ICR eq. 11; the paper's own threshold is on the softmax without 1/t: epsilon / t here."""
    scores, positives = pairs
    p = (scores / 0.1).softmax(1)
    found = gs.cocos(gs.objective("nt-xent"), scores, positives, epsilon=0.01 / 0.1)
    negatives = p.masked_fill(positives, 0)
    counts = (negatives > 0.01).sum(1)
    assert found.per_query == pytest.approx(counts.double().mean().item())
    above = negatives.where(negatives > 0.01, 0).sum(1).mean() / 0.1
    assert found.negative_weight == pytest.approx(above.item())
    assert found.positive_weight == pytest.approx(((1 - p.diagonal()) / 0.1).mean().item())


def test_icr_counts_without_the_temperature(pairs: tuple[Tensor, Tensor]) -> None:
    """Threshold and weights of the softmax itself, and C^q over all queries, some without any."""
    scores, positives = pairs
    scores = scores + positives * (torch.arange(32) < 16)
    p = (scores / 0.1).softmax(1)
    negatives = p.masked_fill(positives, 0)
    found = gs.cocos("nt-xent", scores, positives, 0.05, convention="icr")
    assert 0 < found.queries_without < len(scores)
    counts = (negatives > 0.05).sum(1)
    assert found.per_query == pytest.approx(counts.double().mean().item())
    above = negatives.where(negatives > 0.05, 0).sum(1).mean()
    assert found.negative_weight == pytest.approx(above.item())
    assert found.positive_weight == pytest.approx((1 - p.diagonal()).mean().item())
    plain = gs.cocos("nt-xent", scores, positives, 0.05 / 0.1)
    assert found.per_batch == plain.per_batch
    assert found.per_query < plain.per_query
    for name in ("triplet", "triplet-hard", "circle/sigmoid-ms"):  # there is no temperature
        theirs = gs.cocos(name, scores, positives, convention="icr")
        assert theirs == gs.cocos(name, scores, positives)


def test_effective_number_of_equal_weights_is_their_number() -> None:
    scores = torch.tensor([[0.3, 0.3, 0.3, 0.3]], dtype=torch.float64)
    positives = torch.tensor([[True, False, False, False]])
    assert gs.cocos(gs.objective("nt-xent"), scores, positives).effective == pytest.approx(3)


def test_meter_gives_mean_and_standard_deviation() -> None:
    meter = gs.CocosMeter()
    for per_query in (1.0, 2.0, 6.0):
        meter.update(gs.Cocos(per_query, 0, 0, 0, 0, 0))
    assert meter["per_query"] == pytest.approx((3, math.sqrt(7)))
    assert len(meter) == 3


def test_bad_input_is_named(pairs: tuple[Tensor, Tensor]) -> None:
    scores, positives = pairs
    with pytest.raises(ValueError, match="epsilon must be zero or a positive number, got -1"):
        gs.cocos(gs.objective("triplet"), scores, positives, epsilon=-1)
    other: Any = "paper"
    with pytest.raises(ValueError, match="convention must be 'gradient' or 'icr', got 'paper'"):
        gs.cocos("triplet", scores, positives, convention=other)
    scores[5, 7] = torch.nan
    with pytest.raises(
        ValueError, match=r"scores has NaN or infinite values .* the first in row 5"
    ):
        gs.cocos(gs.objective("triplet"), scores, positives)


def test_inference_mode_changes_nothing(name: str, batch: Batch) -> None:
    scores, positives = batch(5)
    objective = gs.objective(name)
    weights = gs.score_weights(objective, scores, positives)
    counts = gs.cocos(objective, scores, positives)
    with torch.inference_mode():
        for given, belong in (
            (scores, positives),
            (scores.clone(), positives.clone()),
            (scores.clone(), match_mask(positives)),
        ):
            assert torch.equal(gs.score_weights(objective, given, belong), weights)
            assert gs.cocos(objective, given, belong) == counts


def test_weights_by_name(pairs: tuple[Tensor, Tensor]) -> None:
    by_name = gs.score_weights("nt-xent", *pairs)
    assert torch.equal(by_name, gs.score_weights(gs.objective("nt-xent"), *pairs))
    assert gs.cocos("nt-xent", *pairs) == gs.cocos(gs.objective("nt-xent"), *pairs)


def test_weights_of_bad_scores_get_one_clear_sentence(pairs: tuple[Tensor, Tensor]) -> None:
    scores, positives = pairs
    with pytest.raises(ValueError, match=r"scores must be floating point, got torch\.int64"):
        gs.score_weights("triplet", scores.long(), positives)
    scores[5, 7] = torch.nan
    with pytest.raises(
        ValueError, match=r"scores has NaN or infinite values .* the first in row 5"
    ):
        gs.score_weights("triplet", scores, positives)
