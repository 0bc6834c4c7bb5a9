"""The memory of past embeddings: more negatives, no gradient, part of the state."""

from __future__ import annotations

import pytest
import torch
from embedded import Embedded, embedded, outcome
from torch import Tensor

import gradspace as gs

FIRST, SECOND = embedded(seed=1), embedded(seed=2)


def by_matrix(name: str, now: Embedded, past: Embedded | None) -> Tensor:
    """Both directions from score matrices whose further columns are the past, or none."""
    past = past or Embedded(*(part[:0] for part in now))
    objective = gs.objective(name)
    values = []
    for queries, candidates, ids, other_ids, more, more_ids in (
        (now.images, now.texts, now.image_ids, now.text_ids, past.texts, past.text_ids),
        (now.texts, now.images, now.text_ids, now.image_ids, past.images, past.image_ids),
    ):
        total = queries.new_zeros(())
        for query, own in zip(queries, ids, strict=True):
            others = more[more_ids != own]  # what belongs to the query is left out
            scores = torch.cat([candidates, others]) @ query
            mask = torch.cat([other_ids == own, torch.zeros(len(others), dtype=torch.bool)])
            total = total + objective(scores[None], mask[None]).sum()
        values.append(total)
    return values[0] + values[1]


# A row alone is enough for these: their relative sets do not reach beyond it.
ROWS = ["triplet", "triplet-hard", "nt-xent", "circle", "siglip", "multi-similarity", "smooth-ap"]


@pytest.mark.parametrize("name", [*ROWS, "circle/linear", "nca/sigmoid"])
def test_past_embeddings_are_further_negatives(name: str) -> None:
    loss = gs.RetrievalLoss(name, reduction="sum", memory=1000)
    torch.testing.assert_close(outcome(loss, FIRST).value, by_matrix(name, FIRST, None))
    found = outcome(loss, SECOND)
    now = SECOND._replace(
        images=SECOND.images.clone().requires_grad_(), texts=SECOND.texts.clone().requires_grad_()
    )
    value = by_matrix(name, now, FIRST)
    torch.autograd.backward(value)
    assert now.images.grad is not None
    assert now.texts.grad is not None
    torch.testing.assert_close(found.value, value.detach())
    torch.testing.assert_close(found.by_images, now.images.grad, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(found.by_texts, now.texts.grad, rtol=1e-9, atol=1e-11)


def test_every_objective_by_position(name: str) -> None:
    """The past is nothing but further columns; the sets of the MS weights reach into it too."""
    loss = gs.RetrievalLoss(name, reduction="sum", memory=1000)
    past, now = (batch._replace(texts=batch.texts[:23]) for batch in (FIRST, SECOND))
    outcome(loss, past, image_ids=None)
    found = outcome(loss, now, image_ids=None)
    images, texts = now.images.clone().requires_grad_(), now.texts.clone().requires_grad_()
    own = torch.eye(23, 46, dtype=torch.bool)
    objective = gs.objective(name)
    value = objective(images @ torch.cat([texts, past.texts]).t(), own).sum()
    value = value + objective(texts @ torch.cat([images, past.images]).t(), own).sum()
    gradients = torch.autograd.grad(value, (images, texts))
    torch.testing.assert_close(tuple(found), (value.detach(), *gradients), rtol=1e-9, atol=1e-11)


def test_the_newest_are_kept() -> None:
    loss = gs.RetrievalLoss("triplet", memory=30)
    for batch in (FIRST, SECOND):
        outcome(loss, batch)
    assert loss.memory is not None
    assert torch.equal(loss.memory.images, torch.cat([SECOND.images, FIRST.images])[:30])
    assert torch.equal(loss.memory.texts, SECOND.texts[:30])
    assert not loss.memory.images.requires_grad


def test_evaluation_does_not_remember() -> None:
    loss = gs.RetrievalLoss("triplet", memory=30).eval()
    outcome(loss, FIRST)
    assert loss.memory is not None
    assert len(loss.memory.images) == 0


def test_pairs_by_position_belong_to_nothing_in_the_past() -> None:
    loss = gs.RetrievalLoss("siglip", reduction="sum", memory=100)
    batches = [batch._replace(texts=batch.texts[:23]) for batch in (FIRST, SECOND)]
    for batch in batches:
        found = outcome(loss, batch, image_ids=None)
    place = torch.arange(23)
    now = batches[1]._replace(image_ids=place, text_ids=place)
    past = batches[0]._replace(image_ids=place - 100, text_ids=place - 100)
    torch.testing.assert_close(found.value, by_matrix("siglip", now, past))


def test_names_mean_the_same_in_every_batch() -> None:
    values = []
    for as_names in (False, True):
        loss = gs.RetrievalLoss("nt-xent", memory=100)
        for batch in (FIRST, SECOND):
            ids = {"image_ids": batch.image_ids, "text_ids": batch.text_ids}
            named = {key: [f"image {i}" for i in value.tolist()] for key, value in ids.items()}
            values.append(outcome(loss, batch, **(named if as_names else ids)).value)
    assert values[:2] == values[2:]


def test_the_state_goes_on_elsewhere() -> None:
    loss, other = (gs.RetrievalLoss("nt-xent", memory=30) for _ in range(2))
    outcome(loss, FIRST)
    other.load_state_dict(loss.state_dict())
    for first, second in zip(outcome(loss, SECOND), outcome(other, SECOND), strict=True):
        assert torch.equal(first, second)


def test_batches_of_another_type_take_the_memory_along() -> None:
    loss = gs.RetrievalLoss("nt-xent", memory=100)
    outcome(loss, FIRST)
    single = SECOND._replace(images=SECOND.images.float(), texts=SECOND.texts.float())
    found = outcome(loss, single)
    assert found.by_images.dtype == torch.float32
    other = gs.RetrievalLoss("nt-xent", memory=100)
    outcome(other, FIRST)
    expected = outcome(other, SECOND)
    torch.testing.assert_close(found.value.double(), expected.value, rtol=1e-5, atol=0)


def test_another_width_is_refused() -> None:
    loss = gs.RetrievalLoss("triplet", memory=30)
    outcome(loss, FIRST)
    with pytest.raises(ValueError, match="holds embeddings of width 6, the batch has width 9"):
        outcome(loss, embedded(width=9))


def test_what_is_seen_under_inference_mode_is_not_remembered() -> None:
    loss = gs.RetrievalLoss("nt-xent", reduction="sum", memory=1000)
    with torch.inference_mode():
        loss(*FIRST)
    torch.testing.assert_close(outcome(loss, SECOND).value, by_matrix("nt-xent", SECOND, None))
