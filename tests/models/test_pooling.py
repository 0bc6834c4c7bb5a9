from __future__ import annotations

import pytest
import torch
from models import loops
from torch import Tensor

from gradspace.models.pooling import GPO, length_mask, masked_max, masked_mean


def features_and_mask(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Five sets of 1 to 7 features that lie anywhere in their rows."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(5, 7, 3, generator=generator, dtype=torch.float64)
    mask = torch.rand(5, 7, generator=generator) < 0.6
    mask[0], mask[1] = True, torch.arange(7) == 4
    return features, mask


@pytest.fixture
def gpo() -> GPO:
    torch.manual_seed(0)
    return GPO(code_width=6, width=5).double()


def test_gpo_is_the_equation(gpo: GPO) -> None:
    features, mask = features_and_mask()
    pooled = gpo(features, mask)
    for row, kept, found in zip(features, mask, pooled, strict=True):
        expected = loops.gpo(gpo, loops.matrix(row[kept]))
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_gpo_has_the_published_sizes() -> None:
    gpo = GPO()
    assert (gpo.code_width, gpo.score.in_features, gpo.temperature) == (32, 32, 0.1)


def test_order_and_place_of_the_features_do_not_matter(gpo: GPO) -> None:
    features, mask = features_and_mask()
    order = torch.randperm(7)
    torch.testing.assert_close(gpo(features[:, order], mask[:, order]), gpo(features, mask))


def test_padding_changes_nothing(gpo: GPO) -> None:
    features, mask = features_and_mask()
    padded = torch.cat([features, torch.full((5, 4, 3), torch.nan, dtype=torch.float64)], 1)
    longer = torch.cat([mask, torch.zeros(5, 4, dtype=torch.bool)], 1)
    for pool in (gpo, masked_mean, masked_max):
        torch.testing.assert_close(pool(padded, longer), pool(features, mask))


def test_equal_weights_are_the_mean(gpo: GPO) -> None:
    features, mask = features_and_mask()
    torch.nn.init.zeros_(gpo.score.weight)
    torch.testing.assert_close(gpo(features, mask), masked_mean(features, mask))


def test_weight_on_the_first_place_is_the_maximum(
    gpo: GPO, monkeypatch: pytest.MonkeyPatch
) -> None:
    features, mask = features_and_mask()
    first = torch.eye(1, 7, dtype=torch.float64).expand(5, 7)
    monkeypatch.setattr(gpo, "weights", lambda lengths, size: first)
    assert torch.equal(gpo(features, mask), masked_max(features, mask))


def test_weights_sum_to_one_over_the_length(gpo: GPO) -> None:
    lengths = torch.tensor([3, 7, 1, 3])
    weights = gpo.weights(lengths, 7)
    torch.testing.assert_close(weights.sum(1), torch.ones(4, dtype=torch.float64))
    assert not weights[~length_mask(lengths, 7)].any()
    assert torch.equal(weights[0], weights[3])


def test_it_can_be_trained_after_it_has_only_been_used() -> None:
    gpo = GPO(code_width=10)  # of a width that no other test has
    with torch.inference_mode():
        gpo.weights(torch.tensor([2, 3]), 3)
    torch.autograd.backward(gpo.weights(torch.tensor([2, 3]), 3)[:, 0].sum())
    assert gpo.there.weight_ih_l0.grad is not None
    assert gpo.back.weight_ih_l0.grad is not None


def test_gpo_passes_gradcheck(gpo: GPO) -> None:
    features, mask = features_and_mask()[0][:2, :4], length_mask(torch.tensor([4, 2]), 4)
    assert torch.autograd.gradcheck(lambda x: gpo(x, mask), (features.requires_grad_(),))


def test_half_precision_features_are_pooled_in_the_precision_of_the_weights() -> None:
    features, mask = features_and_mask()
    gpo = GPO()
    with torch.autocast("cpu", torch.bfloat16):
        pooled = gpo(features.bfloat16(), mask)
    assert torch.equal(pooled, gpo(features.bfloat16().float(), mask))
