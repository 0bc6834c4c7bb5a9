"""Parts of the Triton kernels, in Triton's interpreter: what whole objectives cannot tell apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from embedded import Embedded, Outcome, embedded, outcome
from torch import Tensor
from torch.nn.functional import softplus

import gradspace as gs

pytest.importorskip("triton")

from gradspace.execution import choice
from gradspace.execution.triton import forward, fused, launching, slots, terms, whole_rows
from gradspace.execution.triton.launching import Tile

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="needs Triton's interpreter")


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(launching, "FLOAT32", (Tile(16, 32, 16, 1, 1),))
    monkeypatch.setattr(launching, "RECOVER", Tile(16, 0, 16, 1, 1))
    monkeypatch.setattr(slots, "QUERIES", 16)
    monkeypatch.setattr(slots, "CANDIDATES", 16)
    monkeypatch.setattr(fused, "is_available", lambda values: values.dtype in fused.DTYPES)
    with np.errstate(all="ignore"):
        yield


def of_kernels(name: str, length: float = 1.0, **how: Any) -> Outcome:
    batch = embedded(num_images=20, num_texts=28, length=length, dtype=torch.float32)
    return outcome(gs.RetrievalLoss(name, execution="triton", normalize=False, **how), batch)


@pytest.mark.parametrize("kernels", ["tiles", None])
@pytest.mark.parametrize("length", [1.0, 2.0])
def test_a_kernel_for_each_case_of_exponentials(
    kernels: str | None, length: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large batches launch one kernel for when a reference serves all exponentials, and another."""
    monkeypatch.setattr(choice, "choose_kernels", lambda *_, **__: kernels)
    expected = of_kernels("nt-xent", length)
    monkeypatch.setattr(forward, "LARGE", 1)
    for got, wanted in zip(of_kernels("nt-xent", length), expected, strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("name", ["triplet-hard", "circle/sigmoid-ms"])
def test_weights_overwrite_the_scores_of_a_large_batch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "choose_kernels", lambda *_, **__: "rows")
    expected = of_kernels(name)
    monkeypatch.setattr(whole_rows, "READ_TWICE", 1)
    for got, wanted in zip(of_kernels(name), expected, strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("kernels", ["rows", "tiles", None])
def test_the_first_of_equal_hardest_negatives(
    kernels: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores of these unit vectors are exact, and many are equal, within a tile and across."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 2, (40, 4), generator=generator) - 0.5
    texts = torch.randint(0, 2, (70, 4), generator=generator) - 0.5
    batch = Embedded(images, texts, torch.arange(40), torch.arange(70) % 45)
    expected = outcome(gs.RetrievalLoss("triplet-hard", execution="dense"), batch)
    monkeypatch.setattr(choice, "choose_kernels", lambda *_, **__: kernels)
    found = outcome(gs.RetrievalLoss("triplet-hard", execution="triton"), batch)
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("seed", range(3))
def test_the_most_positives_of_a_query(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    image_ids = torch.randint(0, 12, (21,), generator=generator)
    text_ids = torch.randint(5, 17, (50,), generator=generator) << 40
    image_ids = image_ids << 40
    of_images = [sum(int(i == t) for t in text_ids) for i in image_ids]
    of_texts = [sum(int(i == t) for i in image_ids) for t in text_ids]
    expected = [max(of_images), max(of_texts)]
    assert slots._most(image_ids, text_ids) == expected
    assert slots._most_on_gpu(image_ids, text_ids) == expected
    made = slots.slots_of_ids(image_ids, text_ids, torch.device("cpu"))
    assert_lists(made.texts_of_images, image_ids, text_ids)
    assert_lists(made.images_of_texts, text_ids, image_ids)


def assert_lists(index: Tensor, query_ids: Tensor, candidate_ids: Tensor) -> None:
    for own, row in zip(query_ids, index, strict=True):
        expected = [k for k, other in enumerate(candidate_ids) if other == own]
        assert row.tolist() == expected + [-1] * (len(row) - len(expected))


def test_softplus_without_a_logarithm() -> None:
    from triton_terms import evaluate

    scores = torch.linspace(-30, 30, 256).view(16, 16)
    scores[0, 0], scores[0, 1] = -torch.inf, 0.0
    translated = terms.translate(lambda s, _: softplus(s), 0.0)
    value, by_score, by_given = evaluate(translated.term, translated.derivatives, scores, 0.0)
    torch.testing.assert_close(value, softplus(scores.double()).float(), rtol=3e-6, atol=0)
    torch.testing.assert_close(by_score, scores.double().sigmoid().float(), rtol=3e-6, atol=0)
    assert not by_given.any()
    assert translated.vanishes


def test_softplus_of_another_sharpness_is_not_translated() -> None:
    from gradspace.execution.triton.graphs import UnsupportedTermError

    with pytest.raises(UnsupportedTermError, match="not the default"):
        terms.translate(lambda s, _: softplus(s, beta=2.0), 0.0)
