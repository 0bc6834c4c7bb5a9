from __future__ import annotations

from pathlib import Path

import pytest
import torch
from models import loops, tiny

from gradspace.models import ImageInput, TextInput
from gradspace.models.encoders import Encoders
from gradspace.models.pooling import length_mask
from gradspace.models.vse_infinity import VSEInfinity, drop_words, keep_some

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


def test_a_varying_share_is_dropped_from_nothing_upwards() -> None:
    torch.manual_seed(0)
    kept = keep_some(torch.ones(4000, 36, dtype=torch.bool), 0.2).sum(1)
    assert 1 - kept.float().mean().item() / 36 == pytest.approx(0.2, abs=0.01)
    assert (kept == 36).float().mean() > 0.05, "the full number is seen in training"
    assert len(set(kept.tolist())) > 15


def test_something_is_always_kept() -> None:
    torch.manual_seed(0)
    mask = torch.tensor([[True, False, False]]).expand(2000, 3)
    assert torch.equal(keep_some(mask, 0.5), mask)


def test_dropped_words_leave_no_gap_and_keep_their_order() -> None:
    torch.manual_seed(0)
    tokens = torch.arange(1, 11).repeat(500, 1)
    lengths = torch.randint(1, 11, (500,))
    tokens = tokens.where(length_mask(lengths, 10), 0)
    fewer, new_lengths = drop_words(tokens, lengths, 0.5)
    for row, before, after in zip(fewer, lengths, new_lengths, strict=True):
        assert row[0] == 1
        assert row[after - 1] == before, "the last token stays"
        assert (row[:after].diff() > 0).all()
        assert not row[after:].any()
    assert (new_lengths < lengths).float().mean() > 0.4
    assert torch.equal(drop_words(tokens, lengths, 0.0)[0], tokens)


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
