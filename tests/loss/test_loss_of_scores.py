"""`RetrievalLoss.of_scores` is the loss of embeddings whose products are the scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gradspace as gs
from gradspace.analysis.mined import offline_cocos, offline_cocos_of_scores
from gradspace.loss.mined import Offline

OBJECTIVES = ["triplet", "triplet-hard", "nt-xent", "smooth-ap", "circle/sigmoid-ms", "siglip"]
MINED = [*OBJECTIVES, "offline-triplet", "adaptive-offline-quintuplet"]


def unit(*shape: int, seed: int) -> Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(values, dim=-1)


def mined_batch() -> tuple[Tensor, Tensor, Tensor, Offline]:
    """Six pairs, two of one image; some of what was mined belongs to a query."""
    images, texts, *more = unit(6, 6, 8, seed=0).unbind()
    ids = torch.tensor([0, 1, 2, 3, 4, 0])
    image_ids, text_ids = torch.tensor([7, 8, 0, 9, 2, 3]), torch.tensor([8, 7, 4, 0, 11, 2])
    return (
        images,
        texts,
        ids,
        Offline(more[0], more[1], more[2], more[3], image_ids=image_ids, text_ids=text_ids),
    )


@pytest.mark.parametrize("positives", ["ids", "position"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_scores_and_embeddings_have_one_loss(name: str, positives: Any) -> None:
    images, texts, ids = unit(6, 8, seed=0), unit(6, 8, seed=1), torch.tensor([0, 1, 2, 3, 4, 0])
    loss = gs.RetrievalLoss(name, positives=positives)
    torch.testing.assert_close(
        loss.of_scores(images @ texts.t(), ids, ids), loss(images, texts, ids, ids)
    )


@pytest.mark.parametrize("positives", ["ids", "position"])
@pytest.mark.parametrize("name", MINED)
def test_with_mined_negatives_too(name: str, positives: Any) -> None:
    images, texts, ids, offline = mined_batch()
    loss = gs.RetrievalLoss(name, positives=positives)
    found = []
    for as_scores in (False, True):
        leaves = [side.clone().requires_grad_() for side in (images, texts)]
        if as_scores:
            mined = offline.scores(leaves[0], leaves[1], loss.objective.uses_offline)
            value = loss.of_scores(leaves[0] @ leaves[1].t(), ids, ids, mined)
        else:
            value = loss(*leaves, ids, ids, offline)
        found.append((value, *torch.autograd.grad(value, leaves)))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("name", ["nt-xent", "adaptive-offline-quintuplet"])
def test_counts_are_the_same(name: str) -> None:
    images, texts, ids, offline = mined_batch()
    objective = gs.objective(name)
    mined = offline.scores(images, texts, objective.uses_offline)
    found = offline_cocos_of_scores(objective, images @ texts.t(), (ids, ids), mined)
    assert found == offline_cocos(objective, images, texts, (ids, ids), offline)


@pytest.mark.parametrize(
    ("scores", "ids", "settings", "message"),
    [
        (torch.zeros(3), None, {}, "scores must be"),
        (torch.full((2, 2), torch.nan), None, {}, "scores has NaN|scores have|NaN"),
        (torch.zeros(2, 3), None, {}, "got 2 images and 3 texts"),
        (torch.zeros(2, 2), [0], {}, "image_ids has 1 entries for 2 images"),
        (
            torch.zeros(2, 2),
            None,
            {"memory": 4},
            "remember; give RetrievalLoss neither",
        ),
        (torch.zeros(2, 2), None, {"normalize": True}, "to normalize"),
    ],
)
def test_what_cannot_be_a_batch(scores: Tensor, ids: Any, settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gs.RetrievalLoss("triplet", **settings).of_scores(scores, ids, ids)
