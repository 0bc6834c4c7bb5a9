from __future__ import annotations

from pathlib import Path

import pytest
import torch
from models import loops, tiny

from gradspace.models import ImageInput, TextInput, build_model
from gradspace.models.encoders import Encoders
from gradspace.models.vse_pp import VSEPlusPlus

WORDS = TextInput(vocabulary_size=9)


def test_images_are_the_equation() -> None:
    """unit(FC(unit(feature))), and the mean of several regions."""
    features = torch.randn(4, 5, 6, dtype=torch.float64)
    for shape, images in (((6,), features[:, 0]), ((5, 6), features)):
        model = VSEPlusPlus(ImageInput(shape=shape), WORDS, encoders=Encoders(width=3)).double()
        found = model.embed_images(images)
        for image, embedding in zip(images, found, strict=True):
            rows = loops.matrix(image.view(-1, 6))
            expected = loops.unit(loops.linear(model.project, loops.unit(loops.mean(rows))))
            torch.testing.assert_close(embedding, torch.tensor(expected, dtype=torch.float64))


def test_texts_are_the_state_after_the_last_word() -> None:
    model = VSEPlusPlus(ImageInput(shape=(6,)), WORDS, encoders=Encoders(width=3)).double()
    tokens, lengths = tiny.captions(4, 9)
    words = model.texts(tokens, lengths)
    for i, embedding in enumerate(model.embed_texts(tokens, lengths)):
        expected = loops.unit(loops.floats(words[i, lengths[i] - 1]))
        torch.testing.assert_close(embedding, torch.tensor(expected, dtype=torch.float64))


def test_has_the_published_sizes() -> None:
    model = VSEPlusPlus(ImageInput(shape=(2048,)), WORDS)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert shapes["project.weight"] == (1024, 2048)
    assert shapes["texts.embedding.weight"] == (9, 300)
    assert shapes["texts.gru.weight_hh_l0"] == (3 * 1024, 1024)
    bound = (6 / (1024 + 2048)) ** 0.5
    assert model.project.weight.abs().max().item() == pytest.approx(bound, rel=1e-4)
    assert not model.project.bias.any()


def test_two_steps_of_training(tmp_path: Path) -> None:
    """Frozen first, then everything at one learning rate."""
    backbone = ImageInput(backbone=tiny.resnet(tmp_path))
    model = build_model("vse++", image_input=backbone, text_input=WORDS, width=4)
    assert [group["name"] for group in model.parameter_groups(1e-3)] == ["new"]
    model.fine_tune_backbone(True)
    rates = {group["name"]: group["lr"] for group in model.parameter_groups(1e-3)}
    assert rates == {"backbone": 1e-3, "new": 1e-3}
    model.fine_tune_backbone(False)
    assert [group["name"] for group in model.parameter_groups(1e-3)] == ["new"]
