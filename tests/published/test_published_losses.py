"""Our objectives, and what the authors' own losses say of the same embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from published.make_losses import CELLS, SIDES
from published.reference import Reference, load, near
from torch import Tensor

import gradspace as gs
from gradspace.loss.mined import Offline
from gradspace.objectives.goal import Goal
from gradspace.objectives.relative import MeanExponential

TRIPLETS = {"con": "constant", "nca": "nca", "cir": "circle"}
PAIRS = {
    "con": "constant",
    "lin": "linear",
    "sig": "sigmoid",
    "lin_ms": "linear-ms",
    "sig_ms": "sigmoid-ms",
}
AS_THEIRS: dict[str, dict[str, Any]] = {
    "con": {"margin": None},
    "nca": {"scale": 10.0},
    "cir": {"scale": 10.0, "offset": 0.5},
}
"""Equation 5 has a gate with a margin, which their constant weight lacks; eq. 8 has no offset."""


def found(objective: Any, given: Reference, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Value and gradients of our loss."""
    images, texts = (given[side].clone().requires_grad_() for side in ("images", "texts"))
    value = gs.RetrievalLoss(objective)(images, texts, **options)
    value.backward()
    assert images.grad is not None
    assert texts.grad is not None
    return value.detach(), images.grad, texts.grad


@pytest.mark.parametrize("name", ["triplet", "triplet-hard", "nt-xent"])
def test_a_loss_of_icr_has_its_value_and_gradients(name: str) -> None:
    given = load("icr").under(name)
    value, images, texts = found(gs.objective(name), given)
    assert value > 0
    near(value, given["value"])
    near(images, given["gradient of images"])
    near(texts, given["gradient of texts"])


def test_smooth_ap_has_its_value_and_gradients() -> None:
    given = load("icr").under("smooth-ap")
    of_text = torch.arange(len(given["texts"])) // 5
    ids = {"image_ids": torch.arange(len(given["images"])), "text_ids": of_text}
    value, images, texts = found("smooth-ap", given, **ids)
    assert 0 < value < 1
    near(value, given["value"])
    near(images, given["gradient of images"])
    near(texts, given["gradient of texts"])


def goal(triplet: str, pair: str) -> Goal:
    objective = gs.objective(f"{TRIPLETS[triplet]}/{PAIRS[pair]}", **AS_THEIRS[triplet])
    assert isinstance(objective, Goal)
    return objective


@pytest.mark.parametrize(("triplet", "pair"), CELLS)
def test_a_cell_of_goal_has_its_gradients(triplet: str, pair: str) -> None:
    """With offset 0.5 in the circle weight and no gate in the constant one, as their code has."""
    given = load("goal").under("full")
    _, images, texts = found(goal(triplet, pair), given)
    expected = given.under(f"{triplet}/{pair}")
    assert expected["images"].abs().amax() > 1e-3
    near(images, expected["images"])
    near(texts, expected["texts"])


THEIR_PAIRS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "lin": lambda p, n: (1 - p, n),
    "lin_ms": lambda p, n, m_p, m_n: ((1 - m_p) * (1 - p), (1 + m_n) * n),
}
"""They weigh a negative below zero with its own score; here it is not pushed any further."""


@pytest.mark.parametrize(("triplet", "pair"), CELLS)
def test_a_cell_of_goal_differs_in_empty_sets_and_in_negatives_below_zero(
    triplet: str, pair: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their m+ and m- of an empty set are 0 in sigmoid-ms, which is no neutral number there."""
    given = load("goal").under("sparse")
    expected = given.under(f"{triplet}/{pair}")
    objective = goal(triplet, pair)
    _, images, texts = found(objective, given)
    if triplet == "con" and pair in ("sig_ms", *THEIR_PAIRS):
        assert (images - expected["images"]).abs().amax() > 0.04
    monkeypatch.setattr(MeanExponential, "neutral", 0.0)
    if pair in THEIR_PAIRS:
        objective = replace(objective, pair_weight=THEIR_PAIRS[pair])
    _, images, texts = found(objective, given)
    near(images, expected["images"])
    near(texts, expected["texts"])


@pytest.mark.parametrize(
    ("step", "objective"),
    [
        ("online", gs.objective("triplet-hard")),
        ("triplet", gs.objective("offline-triplet")),
        ("quintuplet", gs.objective("offline-quintuplet")),
        ("adaptive", gs.objective("adaptive-offline-quintuplet", detach=False, clamp=False)),
        (
            "negative weights",
            gs.objective("adaptive-offline-quintuplet", beta=0.5, detach=False, clamp=False),
        ),
    ],
)
def test_a_step_of_aoq_has_its_value_and_gradients(step: str, objective: gs.Objective) -> None:
    """Their adaptive weight is neither held constant nor kept above zero; ours is by default."""
    given = load("aoq").under(step)
    sides = {side: given[side].clone().requires_grad_() for side in SIDES}
    value = gs.RetrievalLoss(objective)(
        sides["images"], sides["texts"], offline=offline(sides) if step != "online" else None
    )
    value.backward()
    near(value, given["value"])
    for side, values in sides.items():
        expected = given[f"gradient of {side}"]
        near(torch.zeros_like(expected) if values.grad is None else values.grad, expected)


def offline(sides: Mapping[str, Tensor]) -> Offline:
    number = len(sides["images"])
    return Offline(
        images=sides["mined_images"],
        texts=sides["mined_texts"],
        images_of_texts=sides["images_of_texts"],
        texts_of_images=sides["texts_of_images"],
        image_ids=torch.arange(number, 2 * number),
        text_ids=torch.arange(2 * number, 3 * number),
    )


def test_the_adaptive_weight_is_constant_and_not_negative_unless_asked() -> None:
    """Detached, only the gradients differ; clamped, the value does where a weight was negative."""
    given = load("aoq").under("negative weights")

    def adaptive(**options: bool) -> tuple[Tensor, Tensor]:
        objective = gs.objective("adaptive-offline-quintuplet", beta=0.5, **options)
        value, images, _ = found(objective, given, offline=offline(given))
        return value, images

    theirs, constant, not_negative = (
        adaptive(detach=False, clamp=False),
        adaptive(clamp=False),
        adaptive(detach=False),
    )
    near(constant[0], theirs[0])
    assert (constant[1] - theirs[1]).abs().amax() > 0.1
    assert not_negative[0] > theirs[0] + 0.1
