"""The whole score matrix: a gradient from the few weights that are not zero is that of products."""

from __future__ import annotations

import pytest
import torch
from embedded import embedded, outcome
from samples import NAMES
from torch import Tensor

import gradspace as gs
from gradspace.execution import dense, pairs

MINED = [n for n in NAMES if gs.objective(n).mined and not gs.objective(n).uses_offline]


@pytest.mark.parametrize("name", MINED)
def test_few_weights_give_the_gradient_of_products(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "VALUES_AT_ONCE", 50)
    batch = embedded()
    loss = gs.RetrievalLoss(name, execution="dense")
    of_products = outcome(loss, batch, scale=2.5)
    monkeypatch.setattr(dense, "FEW", 0)
    torch.testing.assert_close(outcome(loss, batch, scale=2.5), of_products, rtol=1e-12, atol=1e-13)


def test_only_mined_objectives_have_few_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "FEW", 0)
    images, texts = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4)
    for name, node in (("triplet-hard", "_FewWeights"), ("nt-xent", "Mm")):
        scores = dense.score_matrix(gs.objective(name), images, texts)
        assert type(scores.grad_fn).__name__.startswith(node)


def test_gradients_of_the_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "FEW", 0)
    images, texts = (torch.randn(n, 4, dtype=torch.float64, requires_grad=True) for n in (3, 5))
    weights = torch.randn(3, 5, dtype=torch.float64)

    def values(images: Tensor, texts: Tensor) -> Tensor:
        return (dense.score_matrix(gs.objective("triplet-hard"), images, texts) * weights).sin()

    assert torch.autograd.gradcheck(values, (images, texts))
    assert torch.autograd.gradgradcheck(values, (images, texts))
