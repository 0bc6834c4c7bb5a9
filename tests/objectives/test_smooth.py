"""The smooth family: where GOAL's cells are in it, and a plain loop over its formula."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import GOAL_NAMES, random_batch
from torch import Tensor

import gradspace as gs

SHARP = 1e5
"""Slope of a sigmoid that stands for a step."""
FAR = 1e3
"""Distance of a turning point that no score reaches."""
SMALL = 1e-4
"""Slope of a mean exponential that stands for a mean difference."""
RTOL, ATOL = 2e-3, 2e-4
"""Distance from a limit."""

TRIPLETS = {
    "constant": {"p1": -SHARP, "n1": SHARP, "bias": 0.2 * SHARP},
    "nca": {},
    "circle": {"p1": -20.0, "n1": 0.0, "p2": 10.0, "n2": 10.0, "bias": 5.0},
}
"""Triplet weights of GOAL; circle: scale (n^2 + offset - p (2 - p)), scale 10 and offset 0.5."""
CONSTANT = {"base_p": FAR, "base_n": -FAR}
LINEAR = {
    "pull": 2.0,
    "push": 2.0,
    "width": 2.0,
    "slope_p": SHARP,
    "slope_n": SHARP,
    "base_p": 1.0,
    "base_n": 0.0,
}
PAIRS: dict[str, dict[str, float]] = {
    "constant": CONSTANT,
    "linear": LINEAR,
    "sigmoid": {},
    "linear-ms": {**LINEAR, "gain_p": 1.0, "gain_n": 1.0, "mean_p": SMALL, "mean_n": SMALL},
    "sigmoid-ms": {"gain_p": 2.0, "gain_n": 10.0, "shift": 1.0, "exponent": 1e7},
}
"""Pair weights of GOAL. A ramp as wide as two from 0 or 1 on is linear over all scores; powers of
a large exponent are exponentials, as sigmoid-ms has them: 1 / (m + e) = sigmoid / m, shifted."""


def weights(name: str, scores: Tensor, positives: Tensor, **parameters: Any) -> Tensor:
    return gs.score_weights(gs.objective(name, **parameters), scores, positives)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("triplet", TRIPLETS)
@pytest.mark.parametrize("seed", range(4))
def test_every_goal_cell_is_a_point_or_a_limit(triplet: str, pair: str, seed: int) -> None:
    """d value / d score of every candidate, at scores from -0.6 to 1."""
    scores, positives = random_batch(seed)
    found = weights("smooth", scores, positives, **TRIPLETS[triplet], **PAIRS[pair])
    expected = weights(f"{triplet}/{pair}", scores, positives)
    torch.testing.assert_close(found, expected, rtol=RTOL, atol=ATOL)


def test_these_are_all_cells_and_no_two_are_as_close_as_a_limit() -> None:
    assert {f"{triplet}/{pair}" for triplet in TRIPLETS for pair in PAIRS} == set(GOAL_NAMES)
    found = [weights(name, *random_batch(0)) for name in GOAL_NAMES]
    for one, other in combinations(found, 2):
        assert not torch.allclose(one, other, rtol=10 * RTOL, atol=10 * ATOL)


@pytest.mark.parametrize("cell", ["nca/sigmoid", "circle/sigmoid"])
def test_sigmoid_cells_are_points(cell: str) -> None:
    scores, positives = random_batch(5)
    found = weights("smooth", scores, positives, **TRIPLETS[cell.partition("/")[0]])
    expected = weights(cell, scores, positives)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_a_limit_is_approached() -> None:
    """Sharper steps are closer to constant/linear than round ones."""
    scores, positives = random_batch(6)
    expected = weights("constant/linear", scores, positives)
    errors = []
    for slope in (10.0, 100.0, 1000.0):
        parameters = {"p1": -slope, "n1": slope, "bias": 0.2 * slope, **LINEAR}
        parameters |= {"slope_p": slope, "slope_n": slope}
        found = weights("smooth", scores, positives, **parameters)
        errors.append(float((found - expected).abs().max()))
    assert errors[0] > 2 * errors[1]
    assert errors[1] > 2 * errors[2]


# --- a loop from the equations ------------------------------------------------------------------


def ramp(slope: float, x: float, width: float) -> float:
    """The mean of sigmoid(slope y) over x - width <= y <= x, by many small steps."""
    if width == 0:
        return oracles.logistic(slope * x)
    steps = 2000
    places = (x - width * (k + 0.5) / steps for k in range(steps))
    return sum(oracles.logistic(slope * y) for y in places) / steps


def loop_weights(scores: list[list[float]], mask: list[list[bool]], v: dict[str, float]) -> Any:
    def triplet(p: float, n: float) -> float:
        return oracles.logistic(
            v["p1"] * p + v["n1"] * n + v["p2"] * p**2 + v["n2"] * n**2 + v["bias"]
        )

    def pair(p: float, n: float, set_p: list[float], set_n: list[float]) -> tuple[float, float]:
        d_p = d_n = 0.0
        if set_p:
            mean = sum(math.exp(v["mean_p"] * (p - r)) for r in set_p) / len(set_p)
            d_p = math.log(mean) / v["mean_p"]
        if set_n:
            mean = sum(math.exp(-v["mean_n"] * (n - r)) for r in set_n) / len(set_n)
            d_n = -math.log(mean) / v["mean_n"]
        k = v["exponent"]
        of_p = v["pull"] * max(1 - v["gain_p"] * d_p / k, 0.0) ** k
        of_n = v["push"] * (1 + v["gain_n"] * d_n / k) ** k
        return (
            of_p * ramp(v["slope_p"], v["base_p"] + v["shift"] * d_p - p, v["width"]),
            of_n * ramp(v["slope_n"], n - v["base_n"] - v["shift"] * d_n, v["width"]),
        )

    return oracles.weights_of(triplet, pair, scores, mask, v["epsilon"])


points = st.fixed_dictionaries(
    {
        **{name: st.floats(-10, 10) for name in ("p1", "n1", "p2", "n2", "bias")},
        **{name: st.floats(0.1, 3) for name in ("pull", "push", "exponent")},
        **{name: st.floats(0.1, 12) for name in ("slope_p", "slope_n", "mean_p", "mean_n")},
        **{name: st.floats(-1, 1) for name in ("base_p", "base_n")},
        "width": st.sampled_from([0.0, 0.3, 2.0]),
        "gain_p": st.sampled_from([0.0, 0.4, 3.0]),
        "gain_n": st.sampled_from([0.0, 0.4, 3.0]),
        "shift": st.sampled_from([0.0, 0.7]),
        "epsilon": st.sampled_from([0.0, 0.1]),
    }
)


@settings(max_examples=40, deadline=None)
@given(parameters=points, seed=st.integers(0, 1000))
def test_weights_equal_the_loop(parameters: dict[str, float], seed: int) -> None:
    scores, positives = random_batch(seed, 4, 6)
    found = weights("smooth", scores, positives, **parameters)
    expected = loop_weights(scores.tolist(), positives.tolist(), parameters)
    torch.testing.assert_close(
        found, torch.tensor(expected, dtype=torch.float64), rtol=1e-4, atol=1e-6
    )
