"""RetrievalLoss: both directions, reductions, ids, and how it behaves inside training."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import oracles
import pytest
import torch
from samples import NAMES
from torch import Tensor, nn

import gradspace as gs
from gradspace.execution.distributed import Processes


def embeddings(num_images: int = 6, captions: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(num_images, 5, generator=generator, dtype=torch.float64)
    texts = torch.randn(num_images * captions, 5, generator=generator, dtype=torch.float64)
    return nn.functional.normalize(images), nn.functional.normalize(texts)


IDS = torch.arange(6)
TEXT_IDS = IDS.repeat_interleave(2)


@pytest.mark.parametrize("name", ["triplet-hard", "nt-xent"])
def test_both_directions_by_loops(name: str) -> None:
    images, texts = embeddings()
    scores = (images @ texts.t()).tolist()
    mask = (IDS[:, None] == TEXT_IDS).tolist()
    by_image = oracles.loss_values(name, scores, mask)
    by_text = oracles.loss_values(
        name,
        [list(c) for c in zip(*scores, strict=True)],
        [list(c) for c in zip(*mask, strict=True)],
    )
    total = sum(by_image) + sum(by_text)
    mean = (sum(by_image) / 6 + sum(by_text) / 12) / 2
    for reduction, expected in (("sum", total), ("mean", mean)):
        loss = gs.RetrievalLoss(name, reduction=reduction)  # type: ignore[arg-type]
        assert loss(images, texts, IDS, TEXT_IDS).item() == pytest.approx(expected, rel=1e-12)
    published = {"triplet-hard": total, "nt-xent": mean}[name]
    assert gs.RetrievalLoss(name)(images, texts, IDS, TEXT_IDS).item() == pytest.approx(published)


def test_siglip_is_the_published_sum_over_pairs() -> None:
    images, texts = embeddings(captions=1)
    signs = 2 * torch.eye(6, dtype=torch.float64) - 1
    logits = 10 * images @ texts.t() - 10
    expected = -nn.functional.logsigmoid(signs * logits).sum() / 6
    assert gs.RetrievalLoss("siglip")(images, texts).item() == pytest.approx(expected.item())


def test_nt_xent_of_pairs_is_cross_entropy() -> None:
    images, texts = embeddings(captions=1)
    logits = images @ texts.t() / 0.1
    target = torch.arange(6)
    cross_entropy = nn.functional.cross_entropy
    expected = (cross_entropy(logits, target) + cross_entropy(logits.t(), target)) / 2
    assert gs.RetrievalLoss("nt-xent")(images, texts).item() == pytest.approx(expected.item())


def test_captions_of_one_image_are_not_negatives_unless_asked() -> None:
    images, texts = embeddings(captions=1)
    images = images[[0, 0, 1, 2, 3, 4]]
    ids = torch.tensor([7, 7, 1, 2, 3, 4])
    by_ids = gs.RetrievalLoss("triplet")(images, texts, ids, ids)
    published = gs.RetrievalLoss("triplet", positives="position")(images, texts, ids, ids)
    assert published == gs.RetrievalLoss("triplet")(images, texts)
    assert by_ids != published
    scores = images @ texts.t()
    positives = ids[:, None] == ids
    value = gs.objective("triplet")(scores, positives).sum()
    value = value + gs.objective("triplet")(scores.t(), positives).sum()
    torch.testing.assert_close(by_ids, value)


@pytest.mark.parametrize(
    "convert",
    [list, np.array, lambda ids: [f"image-{i}" for i in ids]],
    ids=["list", "numpy", "str"],
)
def test_ids_may_be_lists_arrays_or_names(convert: Any) -> None:
    images, texts = embeddings()
    loss = gs.RetrievalLoss("nt-xent")
    expected = loss(images, texts, IDS, TEXT_IDS)
    found = loss(images, texts, convert(IDS.tolist()), convert(TEXT_IDS.tolist()))
    assert torch.equal(found, expected)


def test_queries_without_a_positive_are_not_counted() -> None:
    images, texts = embeddings()
    loss = gs.RetrievalLoss("nt-xent", normalize=False)
    with_stranger = loss(torch.cat([images, images[:1] * 0]), texts, [*range(6), 99], TEXT_IDS)
    scores = (images @ texts.t()).tolist()
    mask = IDS[:, None] == TEXT_IDS
    by_image = sum(oracles.loss_values("nt-xent", scores, mask.tolist())) / 6
    columns = torch.cat([images @ texts.t(), texts.new_zeros(1, 12)]).t().tolist()
    more = torch.cat([mask, torch.zeros(1, 12, dtype=torch.bool)]).t().tolist()
    by_text = sum(oracles.loss_values("nt-xent", columns, more)) / 12
    assert with_stranger.item() == pytest.approx((by_image + by_text) / 2)


def test_normalize_makes_length_irrelevant() -> None:
    images, texts = embeddings(captions=1)
    loss = gs.RetrievalLoss("nt-xent", normalize=True)
    torch.testing.assert_close(loss(3 * images, 0.1 * texts), loss(images, texts))


# --- inside training ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_backward_is_the_chain_rule_on_the_weights(name: str) -> None:
    """Gradients of the embeddings are the incoming gradient times weights times the other side."""
    images, texts = (e.requires_grad_() for e in embeddings())
    objective = gs.objective(name)
    value = gs.RetrievalLoss(objective, reduction="sum")(images, texts, IDS, TEXT_IDS)
    value.backward(torch.tensor(2.5, dtype=torch.float64), retain_graph=True)
    scores, positives = (images @ texts.t()).detach(), IDS[:, None] == TEXT_IDS
    w = gs.score_weights(objective, scores, positives)
    w = w + gs.score_weights(objective, scores.t(), positives.t()).t()
    torch.testing.assert_close(images.grad, 2.5 * w @ texts.detach(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(texts.grad, 2.5 * w.t() @ images.detach(), rtol=1e-10, atol=1e-12)
    value.backward(torch.tensor(2.5, dtype=torch.float64))
    torch.testing.assert_close(images.grad, 5 * w @ texts.detach(), rtol=1e-10, atol=1e-12)


def test_grad_scaler_and_autocast_give_the_unscaled_gradient() -> None:
    torch.manual_seed(0)
    image_encoder, text_encoder = nn.Linear(5, 4), nn.Linear(5, 4)
    images, texts = (e.float() for e in embeddings(captions=1))
    loss = gs.RetrievalLoss("circle/sigmoid-ms", normalize=True)
    gradients = []
    for scaler in (torch.amp.GradScaler("cpu", init_scale=2**12), None):
        image_encoder.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = loss(image_encoder(images), text_encoder(texts))
        assert value.dtype == torch.float32
        if scaler:
            optimizer = torch.optim.SGD(image_encoder.parameters(), lr=0.0)
            scaler.scale(value).backward()
            scaler.unscale_(optimizer)
        else:
            value.backward()
        assert image_encoder.weight.grad is not None
        gradients.append(image_encoder.weight.grad.clone())
    torch.testing.assert_close(gradients[0], gradients[1])


def test_scores_are_not_rounded_by_autocast() -> None:
    images, texts = (e.float() for e in embeddings(captions=1))
    loss = gs.RetrievalLoss("triplet-hard")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = loss(images, texts)
    assert torch.equal(inside, loss(images, texts))


def test_gradient_accumulation_adds_up() -> None:
    images, texts = embeddings(captions=1)
    images.requires_grad_()
    loss = gs.RetrievalLoss("nca/linear-ms")
    (loss(images, texts) / 2).backward()
    (loss(images, texts) / 2).backward()
    (whole,) = torch.autograd.grad(loss(images, texts), images)
    torch.testing.assert_close(images.grad, whole)


def test_training_brings_pairs_together() -> None:
    torch.manual_seed(0)
    images, texts = nn.Parameter(torch.randn(20, 8)), nn.Parameter(torch.randn(20, 8))
    loss = gs.RetrievalLoss("circle/sigmoid-ms", normalize=True)
    optimizer = torch.optim.Adam([images, texts], lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        loss(images, texts).backward()
        optimizer.step()
    normal = nn.functional.normalize
    report = gs.recall(normal(images) @ normal(texts).t(), torch.eye(20, dtype=torch.bool))
    assert report[1] > 90


# --- bad input ----------------------------------------------------------------------------------

GOOD = torch.eye(4)

BAD_CALLS: list[tuple[str, dict[str, Any]]] = [
    ("images must be [count, width], got shape [4]", {"images": torch.ones(4)}),
    ("must have the same width, got 4 and 3", {"texts": torch.ones(4, 3)}),
    ("images must be floating point, got torch.int64", {"images": torch.eye(4).long()}),
    ("texts is empty", {"texts": torch.ones(0, 4)}),
    ("got 4 images and 5 texts; pass image_ids and text_ids", {"texts": torch.ones(5, 4)}),
    ("image_ids has 3 entries for 4 images", {"image_ids": [1, 2, 3], "text_ids": [1, 2, 3, 4]}),
    ("text_ids has 5 entries for 4 texts", {"image_ids": [1] * 4, "text_ids": [1] * 5}),
    ("text_ids is missing", {"image_ids": [1, 2, 3, 4]}),
    ("no positive pair; check", {"image_ids": [1, 2, 3, 4], "text_ids": [5, 6, 7, 8]}),
    (
        "image_ids must be a vector of integers or names, got torch.float32",
        {"image_ids": torch.ones(4), "text_ids": torch.ones(4)},
    ),
    (
        "image_ids must be a vector of integers or names, got torch.bool",
        {"image_ids": torch.ones(4) > 0, "text_ids": torch.ones(4) > 0},
    ),
    ("images must be a tensor, got numpy.ndarray; convert", {"images": np.eye(4)}),
    ("texts must be a tensor, got list; convert with torch.as_tensor", {"texts": [[1.0]] * 4}),
    (
        "images has NaN or infinite values in 2 of 4 rows, the first in row 1",
        {"images": torch.tensor([[1.0], [torch.nan], [2.0], [torch.inf]]).expand(4, 4)},
    ),
]


@pytest.mark.parametrize(("message", "arguments"), BAD_CALLS)
def test_bad_batches_get_one_clear_sentence(message: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        gs.RetrievalLoss("triplet-hard")(**{"images": GOOD, "texts": GOOD.clone(), **arguments})


def test_one_set_is_refused() -> None:
    with pytest.raises(ValueError, match="every item would be its own positive"):
        gs.RetrievalLoss("triplet-hard")(GOOD, GOOD, [0, 0, 1, 1], [0, 0, 1, 1])


def test_other_lengths_than_one_are_warned_of_once() -> None:
    images, texts = torch.eye(4) * 3, torch.eye(4)
    loss = gs.RetrievalLoss("triplet-hard")
    with pytest.warns(UserWarning, match="lengths from 1 to 3.*normalize=True"):
        loss(images, texts)
    loss(images, texts)  # warnings are errors in tests
    for normalize in (True, False):
        gs.RetrievalLoss("triplet-hard", normalize=normalize)(images, texts)
    gs.RetrievalLoss("triplet-hard")(texts.bfloat16(), torch.eye(4).bfloat16())


def test_several_processes_get_the_same_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Processes, "current", lambda: Processes(0, 2))
    with pytest.raises(ValueError, match="images must be a tensor, got list"):
        gs.RetrievalLoss("triplet-hard")([[1.0]], GOOD)


BAD_OBJECTIVES: list[tuple[str, Any, dict[str, Any]]] = [
    ("unknown objective 'triplet-hrd'; did you mean 'triplet-hard'", "triplet-hrd", {}),
    ("unknown objective 'xyz'; there are ", "xyz", {}),
    (
        "the name of an objective must be a string, got None; gs.list_objectives() lists the",
        None,
        {},
    ),
    ("unknown objective 'circle/sigmod'; did you mean 'circle/sigmoid'", "circle/sigmod", {}),
    (
        "margin of triplet-hard should be a valid number, got 'wide'",
        "triplet-hard",
        {"margin": "wide"},
    ),
    ("margin of triplet should be a finite number, got nan", "triplet", {"margin": float("nan")}),
    ("temperature of nt-xent should be greater than 0, got 0", "nt-xent", {"temperature": 0}),
    ("nt-xent has no parameter 'margin'; it takes temperature", "nt-xent", {"margin": 0.1}),
    ("circle/linear has no parameter 'scal'; did you mean 'scale'", "circle/linear", {"scal": 1}),
]


@pytest.mark.parametrize(("message", "name", "parameters"), BAD_OBJECTIVES)
def test_bad_objectives_are_named(message: str, name: Any, parameters: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        gs.objective(name, **parameters)


BAD_SCORES: list[tuple[str, Tensor, Tensor]] = [
    ("must have the same shape, got [2, 3] and [3, 3]", torch.ones(2, 3), torch.eye(3) > 0),
    ("scores must be floating point, got torch.int64", torch.ones(2, 2).long(), torch.eye(2) > 0),
    ("positives must be a boolean matrix, got torch.int64", torch.ones(2, 2), torch.eye(2).long()),
    ("positives must be [queries, candidates], got shape [2]", torch.ones(2, 2), torch.ones(2) > 0),
    ("scores must be [queries, candidates], got shape [3]", torch.ones(3), torch.eye(3) > 0),
    ("at least one query and one candidate", torch.ones(0, 3), torch.ones(0, 3) > 0),
]


@pytest.mark.parametrize(("message", "scores", "positives"), BAD_SCORES)
def test_bad_scores_get_one_clear_sentence(message: str, scores: Tensor, positives: Tensor) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        gs.objective("nt-xent")(scores, positives)


def test_bad_options_are_named() -> None:
    with pytest.raises(ValueError, match="reduction must be one of sum, mean, got 'none'"):
        gs.RetrievalLoss("triplet", reduction="none")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="positives must be one of ids, position, got 'diagonal'"):
        gs.RetrievalLoss("triplet", positives="diagonal")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected an objective or its name, got 3; "):
        gs.RetrievalLoss(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [0.5, 1.5, -1, True, "8"])
@pytest.mark.parametrize("option", ["tile", "memory"])
def test_counts_are_positive_whole_numbers(option: str, number: Any) -> None:
    with pytest.raises(ValueError, match=f"{option} must be a positive whole number, got "):
        gs.RetrievalLoss("triplet", **{option: number})


def test_counts_may_come_from_numpy() -> None:
    gs.RetrievalLoss("triplet", tile=np.int64(8), memory=np.int64(8))  # type: ignore[arg-type]
