"""SCAN and BFAN with the weights of their authors' modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from published.make_attention import BFAN_SCORES, REGIONS, SCAN_SCORES
from published.make_losses import SIDES
from published.make_models import FEATURES, LENGTHS, VOCABULARY, WIDTH, WORD
from published.reference import check_gradients, load, near, take_weights
from torch import Tensor

import gradspace as gs
from gradspace.models import ImageInput, TextInput, build_model
from gradspace.models.cross_attention import CrossAttention
from gradspace.objectives.statistics import OfflineScores

NAMES = {"image/fc.": "project.", "text/embed.": "texts.embedding.", "text/rnn.": "texts.gru."}


def attention(name: str, **parameters: Any) -> CrossAttention:
    images, texts = ImageInput(shape=(REGIONS, FEATURES)), TextInput(vocabulary_size=VOCABULARY)
    sizes = {"width": WIDTH, "word_width": WORD}
    model = build_model(name, image_input=images, text_input=texts, **sizes, **parameters)
    assert isinstance(model, CrossAttention)
    return model


def check_step(model: CrossAttention, name: str, kind: str) -> None:
    """Scores and loss in float32; gradients from float64, so that all rounding is theirs."""
    reference = load(name)
    given, expected = reference.under("input"), reference.under(kind)
    take_weights(model, reference.by_our_names("weights", NAMES))
    images, texts = model(given["images"], given["tokens"], given["lengths"])
    scores = model.score(images, texts, given["lengths"])
    near(scores, expected["scores"])
    near(model.score_pairs(images, texts, given["lengths"]), expected["scores"].diag())
    near(gs.RetrievalLoss("triplet-hard").of_scores(scores), expected["loss"])
    model.double()
    images, texts = model(given["images"].double(), given["tokens"], given["lengths"])
    scores = model.score(images, texts, given["lengths"])
    torch.autograd.backward(gs.RetrievalLoss("triplet-hard").of_scores(scores))
    check_gradients(model, expected.by_our_names("gradients", NAMES))


@pytest.mark.parametrize("kind", SCAN_SCORES)
def test_scan_is_that_of_its_authors(kind: str) -> None:
    direction, pooling = kind.split()
    check_step(attention("scan", direction=direction, pooling=pooling), "scan", kind)


@pytest.mark.parametrize("kind", BFAN_SCORES)
def test_bfan_is_that_of_its_authors(kind: str) -> None:
    check_step(attention("bfan", confidence=kind), "bfan", kind)


def test_a_second_round_of_bfan_is_that_of_aoq() -> None:
    reference = load("bfan").under("aoq")
    model, lengths = attention("bfan"), torch.tensor(LENGTHS)
    given = {side: reference[side].clone().requires_grad_() for side in SIDES}
    sides = {side: torch.nn.functional.normalize(values, dim=2) for side, values in given.items()}
    present = torch.arange(max(LENGTHS)) < lengths[:, None]

    def texts(side: str) -> Tensor:
        return sides[side] * present[..., None]

    def pairs(image: str, text: str) -> Tensor:
        return model.score_pairs(sides[image], texts(text), lengths)

    own = pairs("images", "texts")
    mined = pairs("mined_images", "mined_texts")
    of_mined = pairs("images_of_texts", "texts_of_images")
    objective = gs.objective("adaptive-offline-quintuplet", detach=False, clamp=False)
    loss = gs.RetrievalLoss(objective).of_scores(
        model.score(sides["images"], texts("texts"), lengths),
        offline=(
            OfflineScores(own, pairs("images", "mined_texts"), mined),
            OfflineScores(own, pairs("mined_images", "texts"), of_mined),
        ),
    )
    near(loss, reference["loss"])
    torch.autograd.backward(loss)
    for side, values in given.items():
        assert values.grad is not None
        near(values.grad, reference[f"gradient of {side}"])
