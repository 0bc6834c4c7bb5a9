"""What the benchmarks call plain torch is the same function as ours, for one text per image."""

from __future__ import annotations

import pytest
import torch

import gradspace as gs
from benchmarks.case import Case, make_batch
from benchmarks.plain import PLAIN


@pytest.mark.parametrize("cosine", [0.1, 0.3, 0.9])
@pytest.mark.parametrize("what", PLAIN)
def test_plain_torch_computes_our_loss(what: str, cosine: float) -> None:
    """Near the hardest negative, far below it, and far above all of them."""
    batch = make_batch(Case("batches", "-", what, 40, 1, 16), cosine)
    found = []
    for loss in (PLAIN[what], gs.RetrievalLoss(what, normalize=False)):
        images, texts = (x.double().requires_grad_() for x in (batch.images, batch.texts))
        value = loss(images, texts)
        found.append((value, *torch.autograd.grad(value, (images, texts))))
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-9)


def test_plain_torch_computes_in_float32_what_is_scored_in_bfloat16() -> None:
    batch = make_batch(Case("batches", "-", "-", 40, 1, 16), cosine=0.3)
    for loss in PLAIN.values():
        assert loss(batch.images.bfloat16(), batch.texts.bfloat16()).dtype == torch.float32
