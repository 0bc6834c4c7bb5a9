"""Offline negatives against loops written from the equations, and every objective with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from samples import OFFLINE_NAMES
from several import together
from torch import Tensor

import gradspace as gs
from gradspace import processes
from gradspace.analysis.mined import offline_cocos
from gradspace.loss.mined import Offline

PARTS = ("images", "texts", "images_of_texts", "texts_of_images")
NAMES = ("offline-triplet", "offline-quintuplet", "adaptive-offline-quintuplet")
assert set(NAMES) == set(OFFLINE_NAMES), "every one has its loop below"


def random_pairs(seed: int = 0, n: int = 7, d: int = 5) -> dict[str, Tensor]:
    """Unit vectors of I, T and what was mined for them; two pairs share an image."""
    torch.manual_seed(seed)
    names = ("I", "T", *PARTS)
    vectors = {k: torch.nn.functional.normalize(torch.randn(n, d).double(), dim=1) for k in names}
    vectors["T"] = torch.nn.functional.normalize(vectors["I"] + 0.7 * vectors["T"], dim=1)
    return vectors


def ids(n: int = 7) -> dict[str, Tensor]:
    """Pairs 0 and 3 are captions of one image; some mined items belong to the batch's images."""
    image = torch.arange(n)
    image[3] = 0
    return {
        "own": image,
        "image_ids": torch.tensor([1, 2, 50, 51, 0, 6, 52])[:n],
        "text_ids": torch.tensor([60, 5, 61, 62, 1, 63, 2])[:n],
    }


def offline_of(v: dict[str, Tensor], known: dict[str, Tensor]) -> Offline:
    mined = {name: v[name] for name in PARTS}
    return Offline(**mined, image_ids=known["image_ids"], text_ids=known["text_ids"])


def loop_value(name: str, v: dict[str, Tensor], own: Tensor, **p: Any) -> float:
    """Written from the equations, one number at a time."""
    g1, g2 = p.get("margin", 0.2), p.get("offline_margin", 0.0)
    alpha, beta, clamp = p.get("alpha", 0.3), p.get("beta", 1.5), p.get("clamp", True)

    def s(a: Tensor, b: Tensor) -> float:
        return sum(float(x) * float(y) for x, y in zip(a, b, strict=True))

    total, n = 0.0, len(own)
    for i in range(n):
        same = [j for j in range(n) if own[j] == own[i]]
        others = [j for j in range(n) if own[j] != own[i]]
        mine = s(v["I"][i], v["T"][i])
        directions = [
            ([s(v["I"][i], v["T"][j]) for j in range(n)], s(v["I"][i], v["texts"][i])),
            ([s(v["I"][j], v["T"][i]) for j in range(n)], s(v["images"][i], v["T"][i])),
        ]
        pairs = (
            s(v["images"][i], v["texts"][i]),
            s(v["images_of_texts"][i], v["texts_of_images"][i]),
        )
        for (row, mined), pair in zip(directions, pairs, strict=True):
            hardest = max(row[j] for j in others)
            weight = beta - (mined - hardest) / alpha if name.startswith("adaptive") else 1.0
            weight = max(weight, 0.0) if clamp else weight
            total += weight * sum(max(g1 + hardest - row[j], 0) for j in same)
            total += max(g2 + mined - mine, 0)
            if name != "offline-triplet":
                total += max(g2 + pair - mine, 0)
    return total


CHANGES: list[dict[str, Any]] = [
    {},
    {"margin": 0.5, "offline_margin": 0.3},
    {"offline_margin": -0.2},
]
ADAPTIVE: list[dict[str, Any]] = [
    {"alpha": 0.1, "beta": 0.5},
    {"alpha": 0.2, "clamp": False},
    {"alpha": 0.2, "clamp": False, "detach": False},
]


@pytest.mark.parametrize("execution", ["dense", "streamed"])
@pytest.mark.parametrize(
    ("name", "parameters"),
    [(name, change) for name in NAMES for change in CHANGES] + [(NAMES[2], c) for c in ADAPTIVE],
)
def test_values_equal_the_loop(name: str, parameters: dict[str, Any], execution: Any) -> None:
    for seed in range(3):
        v, known = random_pairs(seed), ids()
        loss = gs.RetrievalLoss(gs.objective(name, **parameters), execution=execution)
        value = loss(v["I"], v["T"], known["own"], known["own"], offline_of(v, known))
        expected = loop_value(name, v, known["own"], **parameters)
        assert value.item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("execution", ["dense", "streamed"])
@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_equal_differences_of_the_loop(name: str, detach: bool, execution: Any) -> None:
    """Take differences with a detached weight held at its value."""
    v, known = random_pairs(1), ids()
    parameters: dict[str, Any] = {"clamp": False, "detach": detach, "offline_margin": 0.3}
    if name != NAMES[2]:
        parameters = {"offline_margin": 0.3}
    leaves = {k: t.clone().requires_grad_() for k, t in v.items()}
    loss = gs.RetrievalLoss(gs.objective(name, **parameters), execution=execution)
    offline = offline_of(leaves, known)
    loss(leaves["I"], leaves["T"], known["own"], known["own"], offline).backward()
    reference = {k: t.clone().requires_grad_() for k, t in v.items()}
    torch.autograd.backward(plain_loss(name, reference, known["own"], detach=detach))
    for key in leaves:
        found, expected = leaves[key].grad, reference[key].grad
        expected = torch.zeros_like(v[key]) if expected is None else expected
        found = torch.zeros_like(v[key]) if found is None else found
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9, msg=key)


def plain_loss(name: str, v: dict[str, Tensor], own: Tensor, *, detach: bool) -> Tensor:
    """Equations on whole matrices, for autograd; g1 0.2, g2 0.3, alpha 0.3, beta 1.5."""
    scores = v["I"] @ v["T"].t()
    same = own[:, None] == own[None, :]
    p = scores.diagonal()
    total = torch.zeros((), dtype=scores.dtype)
    rows = ((scores, v["I"], v["texts"], 0), (scores.t(), v["T"], v["images"], 1))
    for matrix, anchor, negative, way in rows:
        hardest = matrix.masked_fill(same, -9).amax(1)
        mined = (anchor * negative).sum(1)
        left, right = (("images", "texts"), ("images_of_texts", "texts_of_images"))[way]
        pair = (v[left] * v[right]).sum(1)
        weight = 1.5 - (mined - hardest) / 0.3 if name.startswith("adap") else torch.ones_like(p)
        weight = weight.detach() if detach else weight
        online = ((0.2 + hardest[:, None] - matrix).relu() * same).sum(1)
        total = total + (weight * online).sum() + (0.3 + mined - p).relu().sum()
        if name != "offline-triplet":
            total = total + (0.3 + pair - p).relu().sum()
    return total


def test_without_mined_negatives_they_are_the_hardest_triplet() -> None:
    v, known = random_pairs(), ids()
    expected = gs.RetrievalLoss("triplet-hard")(v["I"], v["T"], known["own"], known["own"])
    for name in NAMES:
        found = gs.RetrievalLoss(name)(v["I"], v["T"], known["own"], known["own"])
        assert torch.equal(found, expected)


# --- further candidates of every objective ------------------------------------------------------


def with_columns(name: str, v: dict[str, Tensor], known: dict[str, Tensor]) -> Tensor:
    """By hand: the mined items as columns; those that belong to a query are left out of its row."""
    objective, total = gs.objective(name), []
    extra_ids = torch.cat([known["text_ids"], known["image_ids"]])
    texts = torch.cat([v["T"], v["texts"], v["texts_of_images"]])
    images = torch.cat([v["I"], v["images"], v["images_of_texts"]])
    image_extra = torch.cat([known["image_ids"], known["text_ids"]])
    n = len(known["own"])
    for queries, candidates, ids_of_extra in (
        (v["I"], texts, extra_ids),
        (v["T"], images, image_extra),
    ):
        values = []
        for i in range(n):
            kept = torch.cat([torch.ones(n, dtype=torch.bool), ids_of_extra != known["own"][i]])
            row = (queries @ candidates.t())[:, kept]
            positives = torch.zeros(n, int(kept.sum()), dtype=torch.bool)
            positives[:, :n] = known["own"][:, None] == known["own"][None, :]
            values.append(objective(row, positives)[i])
        total.append(torch.stack(values))
    if objective.reduction == "sum":
        return total[0].sum() + total[1].sum()
    return (total[0].mean() + total[1].mean()) / 2


@pytest.mark.parametrize("name", [i.name for i in gs.list_objectives() if i.name not in NAMES])
def test_mined_items_are_further_columns_of_any_objective(name: str) -> None:
    v, known = random_pairs(2), ids()
    leaves = {k: t.clone().requires_grad_() for k, t in v.items()}
    found = gs.RetrievalLoss(name)(
        leaves["I"], leaves["T"], known["own"], known["own"], offline_of(leaves, known)
    )
    found.backward()
    reference = {k: t.clone().requires_grad_() for k, t in v.items()}
    expected = with_columns(name, reference, known)
    torch.autograd.backward(expected)
    assert found.item() == pytest.approx(expected.item(), rel=1e-9, abs=1e-9)
    for key in leaves:
        grads = [
            torch.zeros_like(v[key]) if g is None else g
            for g in (leaves[key].grad, reference[key].grad)
        ]
        torch.testing.assert_close(*grads, rtol=1e-8, atol=1e-9, msg=key)


def save_gradients(folder: Path, name: str) -> None:
    v, known = random_pairs(3), ids()
    rank, size = processes.rank(), processes.world_size()
    cuts = [0, 5, 7] if size == 2 else [0, 7]
    part = slice(cuts[rank], cuts[rank + 1])
    leaves = {k: t[part].clone().requires_grad_() for k, t in v.items()}
    mine = {k: t[part] for k, t in known.items()}
    value = gs.RetrievalLoss(name)(
        leaves["I"], leaves["T"], mine["own"], mine["own"], offline_of(leaves, mine)
    )
    value.backward()
    found = {k: torch.zeros_like(t) if t.grad is None else t.grad / size for k, t in leaves.items()}
    torch.save({"value": value.detach(), **found}, folder / f"{rank}.pt")


@pytest.mark.parametrize(
    "name", [*NAMES, "triplet-hard", "circle/sigmoid-ms", "nt-xent", "smooth-ap"]
)
@pytest.mark.slow
def test_two_processes_have_the_gradients_of_one(name: str, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    save_gradients(one, name)
    together(2, save_gradients, two, name)
    expected = torch.load(one / "0.pt", weights_only=True)
    parts = [torch.load(two / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    for key, value in expected.items():
        found = parts[0][key] if key == "value" else torch.cat([part[key] for part in parts])
        torch.testing.assert_close(found, value, rtol=1e-8, atol=1e-9, msg=key)


def test_wrong_shapes_are_one_sentence() -> None:
    v, known = random_pairs(), ids()
    offline = offline_of(v, known)
    with pytest.raises(ValueError, match=r"offline.texts must be \[7, 5\].*got \[6, 5\]"):
        gs.RetrievalLoss("offline-triplet")(
            v["I"], v["T"], offline=replace(offline, texts=v["texts"][:6])
        )
    for wrong, expected in (
        (v["texts"].float(), r"of torch.float64.*got \[7, 5\] of torch.float32"),
        (v["texts"] * torch.nan, "offline.texts has NaN or infinite values in 7 of 7 rows"),
    ):
        with pytest.raises(ValueError, match=expected):
            gs.RetrievalLoss("nt-xent")(v["I"], v["T"], offline=replace(offline, texts=wrong))
    with pytest.raises(
        ValueError, match="mined for pairs, image i with text i, got 7 images and 6"
    ):
        gs.RetrievalLoss("nt-xent")(v["I"], v["T"][:6], known["own"], known["own"][:6], offline)
    with pytest.raises(ValueError, match="alpha of adaptive-offline-quintuplet should be greater"):
        gs.objective(NAMES[2], alpha=0.0)


# --- COCOS of what was mined --------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_contributing_terms_are_those_that_violate_their_margin(name: str) -> None:
    v, known = random_pairs(4), ids()
    objective = gs.objective(name, offline_margin=0.6)
    found = offline_cocos(objective, v["I"], v["T"], (known["own"],) * 2, offline_of(v, known))
    p = [float(v["I"][i] @ v["T"][i]) for i in range(7)]
    negatives = (("I", "texts"), ("images", "T"))
    pairs = (("images", "texts"), ("images_of_texts", "texts_of_images"))
    for counts, (a, b), (c, d) in zip(found, negatives, pairs, strict=True):
        violated = [0.6 + float(v[a][i] @ v[b][i]) - p[i] > 0 for i in range(7)]
        both = [0.6 + float(v[c][i] @ v[d][i]) - p[i] > 0 for i in range(7)]
        assert any(violated)
        assert not all(violated)
        assert counts.per_query == pytest.approx(sum(violated) / 7)
        if name != NAMES[2]:  # whose online weight holds the mined score, as a constant
            assert counts.weight == pytest.approx(sum(violated) / 7)
        assert counts.pairs == pytest.approx(0 if name == NAMES[0] else sum(both) / 7)


@pytest.mark.parametrize("name", ["triplet", "triplet-hard", "nt-xent", "circle/sigmoid-ms"])
def test_contributing_columns_are_counted_row_by_row(name: str) -> None:
    v, known = random_pairs(5), ids()
    objective = gs.objective(name)
    found = offline_cocos(objective, v["I"], v["T"], (known["own"],) * 2, offline_of(v, known))
    own, of_images, of_texts = known["own"], known["image_ids"], known["text_ids"]
    sides = (
        (v["I"], [v["T"], v["texts"], v["texts_of_images"]], torch.cat([of_texts, of_images])),
        (v["T"], [v["I"], v["images"], v["images_of_texts"]], torch.cat([of_images, of_texts])),
    )
    for counts, (queries, candidates, extra_ids) in zip(found, sides, strict=True):
        contributing, weight = [], []
        for i in range(7):
            kept = torch.cat([torch.ones(7, dtype=torch.bool), extra_ids != own[i]])
            scores = (queries @ torch.cat(candidates).t())[:, kept]
            positives = torch.zeros_like(scores, dtype=torch.bool)
            positives[:, :7] = own[:, None] == own[None, :]
            mined = gs.score_weights(objective, scores, positives)[i, 7:].abs().tolist()
            contributing.append(sum(w > 0.01 for w in mined))
            weight.append(sum(w for w in mined if w > 0.01))
        assert sum(contributing) > 0
        assert counts.per_query == pytest.approx(sum(contributing) / 7)
        assert counts.weight == pytest.approx(sum(weight) / 7)
