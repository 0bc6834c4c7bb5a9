"""A learned scale of scores against the objective with the same numbers as constants."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from gradspace.models.contract import LearnedScale
from gradspace.models.temperature import current_objective, with_learned_scale
from gradspace.objectives import objective


@pytest.mark.parametrize("goal", ["nt-xent", "siglip"])
def test_a_learned_scale_is_that_of_the_objective(goal: str) -> None:
    """The value, and the derivative by scale and bias, against constants in the objective."""
    generator = torch.Generator().manual_seed(0)
    images, texts = (
        normalize(torch.randn(6, 4, generator=generator, dtype=torch.float64), dim=1)
        for _ in range(2)
    )
    positives = torch.eye(6, dtype=torch.bool)

    def value(scale: Tensor, bias: Tensor) -> Tensor:
        learned = LearnedScale(scale, bias if goal == "siglip" else None)
        a, b = with_learned_scale(objective(goal), images, texts, learned)
        return objective(goal)(a @ b.t(), positives).sum()

    def constant(scale: float, bias: float) -> Tensor:
        learned = LearnedScale(torch.tensor(scale), torch.tensor(bias))
        return current_objective(objective(goal), learned)(images @ texts.t(), positives).sum()

    scale = torch.tensor(7.0, dtype=torch.float64, requires_grad=True)
    bias = torch.tensor(-3.0, dtype=torch.float64, requires_grad=True)
    found = value(scale, bias)
    torch.testing.assert_close(found, constant(7.0, -3.0))
    (by_scale,) = torch.autograd.grad(found, scale, retain_graph=True)
    step = 1e-3
    torch.testing.assert_close(
        by_scale, (constant(7 + step, -3) - constant(7 - step, -3)) / (2 * step), rtol=1e-3, atol=0
    )
    if goal == "siglip":
        (by_bias,) = torch.autograd.grad(found, bias)
        expected = (constant(7, -3 + step) - constant(7, -3 - step)) / (2 * step)
        torch.testing.assert_close(by_bias, expected, rtol=1e-3, atol=0)


def test_other_objectives_have_no_temperature() -> None:
    images, texts, learned = torch.eye(3), torch.eye(3), LearnedScale(torch.tensor(7.0))
    goal = objective("circle/sigmoid-ms")
    found = with_learned_scale(goal, images, texts, learned)
    assert found[0] is images
    assert found[1] is texts
    assert current_objective(goal, learned) is goal
    assert with_learned_scale(objective("nt-xent"), images, texts, None)[0] is images
