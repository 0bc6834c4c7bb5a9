"""Images that belong to several texts and texts to several images, as no single id can say it."""

from __future__ import annotations

from typing import Any

import oracles
import pytest
import torch
from embedded import Embedded, outcome
from repeated import repeated
from samples import LOSS_NAMES, STATISTICS
from torch import Tensor

import gradspace as gs
from gradspace.execution import choice
from gradspace.execution.triton import fused
from gradspace.loss import Offline, retrieval_loss

BATCH, MASK = repeated()
WAYS: list[dict[str, Any]] = [{"execution": "dense"}, {"execution": "streamed", "tile": 8}]


@pytest.mark.parametrize("options", WAYS, ids=["dense", "streamed"])
@pytest.mark.parametrize("name", LOSS_NAMES)
def test_values_are_those_of_loops(name: str, options: dict[str, Any]) -> None:
    batch, _ = repeated(ties=True)
    scores = batch.images @ batch.texts.t()
    by_image = oracles.loss_values(name, scores.tolist(), MASK.tolist())
    by_text = oracles.loss_values(name, scores.t().tolist(), MASK.t().tolist())
    loss = gs.RetrievalLoss(name, reduction="sum", normalize=False, **options)
    assert loss(*batch).item() == pytest.approx(sum(by_image) + sum(by_text), rel=1e-9)
    mean = gs.RetrievalLoss(name, reduction="mean", normalize=False, **options)(*batch)
    both = sum(by_image) / int(MASK.any(1).sum()), sum(by_text) / int(MASK.any(0).sum())
    assert mean.item() == pytest.approx(sum(both) / 2, rel=1e-9)


@pytest.mark.parametrize("options", WAYS, ids=["dense", "streamed"])
@pytest.mark.parametrize("name", STATISTICS)
def test_gradients_are_the_weights(name: str, options: dict[str, Any]) -> None:
    loss = gs.RetrievalLoss(name, reduction="sum", normalize=False, **options)
    found = outcome(loss, BATCH)
    scores, objective = BATCH.images @ BATCH.texts.t(), gs.objective(name)
    weights = gs.score_weights(objective, scores, MASK)
    weights = weights + gs.score_weights(objective, scores.t(), MASK.t()).t()
    torch.testing.assert_close(found.by_images, weights @ BATCH.texts, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(found.by_texts, weights.t() @ BATCH.images, rtol=1e-8, atol=1e-9)


def test_scores_of_pairs() -> None:
    loss = gs.RetrievalLoss("nt-xent", normalize=False)
    scores = BATCH.images @ BATCH.texts.t()
    found = loss.of_scores(scores, BATCH.image_ids, BATCH.text_ids)
    torch.testing.assert_close(found, loss(*BATCH))


def test_the_memory_leaves_out_what_belongs_to_a_query() -> None:
    past, _ = repeated(seed=1)
    loss = gs.RetrievalLoss("triplet", reduction="sum", normalize=False, memory=100)
    loss(*past)
    found = loss(*BATCH)
    assert found.item() == pytest.approx(by_loops(BATCH, past), rel=1e-9)


def by_loops(now: Embedded, more: Embedded) -> float:
    """The triplet loss both ways; of `more` only what does not belong to a query is a candidate."""
    total = 0.0
    for this, that in ((0, 1), (1, 0)):  # images, texts; their ids stand two places on
        candidates, others = now[that], more[that]
        own_ids, more_ids = sets(now[that + 2]), sets(more[that + 2])
        for query, own in zip(now[this], sets(now[this + 2]), strict=True):
            kept = [k for k, ids in enumerate(more_ids) if not own & ids]
            row = torch.cat([candidates, others[kept]]) @ query
            mask = [*(bool(own & ids) for ids in own_ids), *[False] * len(kept)]
            total += oracles.loss_values("triplet", [row.tolist()], [mask])[0]
    return total


def sets(ids: Tensor) -> list[set[int]]:
    return [set(row) for row in ids.view(len(ids), -1).tolist()]


@pytest.mark.parametrize("execution", ["dense", "streamed"])
def test_mined_items_have_several_ids_too(execution: str) -> None:
    """I- has three texts, T~ one of them: both sides of a mined pair are known by their own ids."""
    n = 20
    own = Embedded(*(part[:n] for part in BATCH))
    mined, _ = repeated(seed=1)
    other, _ = repeated(seed=2)
    ids = (mined.image_ids[:n], mined.text_ids[:n], mined.text_ids[n : 2 * n], other.image_ids[:n])
    parts = (mined.images[:n], mined.texts[:n], other.images[:n], mined.texts[n : 2 * n])
    offline = Offline(*parts, *ids)
    loss = gs.RetrievalLoss("triplet", reduction="sum", normalize=False)
    scored = offline.scores(own.images, own.texts, terms=False)
    if execution == "dense":
        scores = own.images @ own.texts.t()
        found = loss.of_scores(scores, own.image_ids, own.text_ids, scored)
    else:
        found = loss(*own, offline)
    more = Embedded(
        *(torch.cat(both) for both in ((parts[0], parts[2]), (parts[1], parts[3]))),
        *(torch.cat(both) for both in ((ids[0], ids[3]), (ids[1], ids[2]))),
    )
    assert found.item() == pytest.approx(by_loops(own, more), rel=1e-9)


def test_kernels_of_triton_are_refused() -> None:
    with pytest.raises(ValueError, match=r'"triton" takes one id of each image .* leave it at'):
        gs.RetrievalLoss("triplet", execution="triton")(*BATCH)


@pytest.mark.parametrize("small", [1 << 30, 0], ids=["matrix", "tiles"])
def test_torch_is_taken_where_kernels_would_be(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def kernels(*given: Any, **options: Any) -> None:
        raise AssertionError("kernels compare one id with one")

    loss = gs.RetrievalLoss("nca/sigmoid-ms", normalize=False)
    expected = loss(*BATCH)
    monkeypatch.setattr(choice, "choose_kernels", kernels)
    monkeypatch.setattr(retrieval_loss, "choose_kernels", kernels)
    monkeypatch.setattr(fused, "suits", lambda images: True)
    monkeypatch.setitem(choice.SMALL, "cpu", small)
    torch.testing.assert_close(loss(*BATCH), expected)
    scores = BATCH.images @ BATCH.texts.t()
    torch.testing.assert_close(loss.of_scores(scores, *BATCH[2:]), expected)
