from __future__ import annotations

from pathlib import Path

import pytest
import torch
from models import loops, tiny

from gradspace.models import ImageInput, TextInput
from gradspace.models.encoders import Encoders
from gradspace.models.vse_infinity import VSEInfinity

REGIONS, WORDS = ImageInput(shape=(5, 6)), TextInput(vocabulary_size=9)


def test_images_are_the_equation() -> None:
    """unit(GPO(FC(region) + MLP(region)))."""
    torch.manual_seed(0)
    model = VSEInfinity(REGIONS, WORDS, encoders=Encoders(width=4)).double().eval()
    assert model.refine is not None
    images = torch.randn(3, 5, 6, dtype=torch.float64)
    for image, embedding in zip(images, model.embed_images(images), strict=True):
        rows = []
        for region in image:
            more = loops.floats(model.refine(region[None])[0])
            plain = loops.linear(model.project, loops.floats(region))
            rows.append([a + b for a, b in zip(plain, more, strict=True)])
        expected = loops.unit(loops.gpo(model.pool_images, rows))
        torch.testing.assert_close(embedding, torch.tensor(expected, dtype=torch.float64))


def test_texts_are_the_equation() -> None:
    model = VSEInfinity(REGIONS, WORDS, encoders=Encoders(width=4)).double().eval()
    tokens, lengths = tiny.captions(4, 9)
    words = model.texts(tokens, lengths)
    for i, embedding in enumerate(model.embed_texts(tokens, lengths)):
        rows = loops.matrix(words[i, : lengths[i]])
        expected = loops.unit(loops.gpo(model.pool_texts, rows))
        torch.testing.assert_close(embedding, torch.tensor(expected, dtype=torch.float64))


def test_has_the_published_sizes(tmp_path: Path) -> None:
    model = VSEInfinity(ImageInput(shape=(36, 2048)), WORDS)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert shapes["project.weight"] == (1024, 2048)
    assert shapes["refine.0.weight"] == (512, 2048)
    assert shapes["refine.3.weight"] == (1024, 512)
    assert shapes["texts.gru.weight_hh_l0_reverse"] == (3 * 1024, 1024)
    grid = VSEInfinity(
        ImageInput(backbone=tiny.resnet(tmp_path)), WORDS, encoders=Encoders(width=4)
    )
    assert grid.refine is None, "grids go through one layer"


def test_learning_rates_are_the_published_ones(tmp_path: Path) -> None:
    backbone, encoder = tiny.resnet(tmp_path / "image"), tiny.bert(tmp_path / "text")
    image_input = ImageInput(backbone=backbone, fine_tune=True)
    model = VSEInfinity(image_input, TextInput(encoder=encoder), encoders=Encoders(width=4))
    rates = {group["name"]: group["lr"] for group in model.parameter_groups(5e-4)}
    assert rates == pytest.approx({"new": 5e-4, "text_encoder": 5e-5, "backbone": 5e-6})


def test_grids_of_a_feature_file_go_through_one_layer_too() -> None:
    """And their cells are dropped as those of a backbone."""
    grid = VSEInfinity(ImageInput(shape=(49, 6), regions="grid"), WORDS)
    assert grid.refine is None
    assert grid.grid
    assert not VSEInfinity(REGIONS, WORDS).grid


def test_a_gru_has_marks_touched_and_bert_has_not(tmp_path: Path) -> None:
    gru = VSEInfinity(REGIONS, TextInput(vocabulary_size=9, mask=8))
    assert (gru.touch.keep_ends, gru.touch.mask, gru.continues) == (False, 8, None)
    encoder = TextInput(encoder=tiny.bert(tmp_path), mask=1, pieces=(8,))
    bert = VSEInfinity(REGIONS, encoder, encoders=Encoders(width=4))
    assert (bert.touch.keep_ends, bert.touch.mask) == (True, 1)
    assert bert.continues is not None
    assert bert.continues.nonzero().flatten().tolist() == [8]
    assert "continues" not in bert.state_dict(), "weights of earlier runs fit"


def test_sizes_vary_in_training_only() -> None:
    model = VSEInfinity(REGIONS, WORDS, encoders=Encoders(width=4), drop=0.5)
    images, (tokens, lengths) = torch.randn(8, 5, 6), tiny.captions(8, 9, longest=9)
    assert not torch.equal(model.embed_images(images), model.embed_images(images))
    assert not torch.equal(model.embed_texts(tokens, lengths), model.embed_texts(tokens, lengths))
    model.eval()
    assert torch.equal(model.embed_images(images), model.embed_images(images))


def test_one_vector_per_image_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"vse-infinity needs regions or a grid"):
        VSEInfinity(ImageInput(shape=(6,)), WORDS)
