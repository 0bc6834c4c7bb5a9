from __future__ import annotations

import numpy as np
import pytest
import torch
from data.examples import picture
from PIL import Image

from gradspace.models.prepare.pictures import CentreCrop, RandomCrop, RandomPart, WholePicture


@pytest.mark.parametrize("size", [(300, 200), (200, 300), (301, 301), (30, 999)])
def test_the_middle_is_cut_after_the_short_side_is_resized(size: tuple[int, int]) -> None:
    image = picture(0, size)
    found = CentreCrop(size=64, resize=80)(image)
    width, height = size
    resized = image.resize(
        (80, 80 * height // width) if width < height else (80 * width // height, 80),
        Image.Resampling.BILINEAR,
    )
    left, top = round((resized.width - 64) / 2), round((resized.height - 64) / 2)
    expected = np.asarray(resized)[top : top + 64, left : left + 64].transpose(2, 0, 1)
    assert found.dtype == torch.uint8
    assert np.array_equal(found.numpy(), expected)


def test_a_crop_cannot_be_larger_than_the_picture() -> None:
    with pytest.raises(ValueError, match="resize is 200; use the size, 224, or more"):
        CentreCrop(resize=200)


def test_random_crops_depend_on_the_generator_alone() -> None:
    crop, image = RandomCrop(size=32), picture(3, (120, 90))
    first, again, other = (crop(image, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first.shape == (3, 32, 32)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("size", [(120, 90), (90, 120), (10, 400), (400, 10), (1, 1)])
def test_parts_have_the_area_and_ratio_asked_for(size: tuple[int, int]) -> None:
    width, height = size
    rng = np.random.default_rng(0)
    crop = RandomCrop(size=8)
    areas = []
    for _ in range(300):
        left, top, w, h = crop._part(width, height, rng)
        assert 0 <= left <= width - w
        assert 0 <= top <= height - h
        assert w > 0
        assert h > 0
        areas.append(w * h / (width * height))
        if min(size) > 50:
            assert 0.7 < w / h < 1.4
    if min(size) > 50:
        assert min(areas) < 0.15
        assert max(areas) > 0.85
        assert 0.4 < np.mean(areas) < 0.6
    assert crop(picture(0, size), rng).shape == (3, 8, 8)


def test_half_of_the_crops_are_flipped() -> None:
    ramp = Image.fromarray(np.tile(np.arange(0, 250, 5, dtype=np.uint8)[None, :, None], (50, 1, 3)))
    crops = [RandomCrop(size=16)(ramp, np.random.default_rng(seed)) for seed in range(200)]
    flipped = sum(bool(crop[0, 0, 0] > crop[0, 0, -1]) for crop in crops)
    assert 70 < flipped < 130


def test_whole_pictures_lose_nothing_at_their_sides() -> None:
    image = Image.new("RGB", (300, 100))
    image.paste((255, 0, 0), (0, 0, 40, 100))
    image.paste((0, 255, 0), (260, 0, 300, 100))
    found = WholePicture(size=30)(image)
    assert found.shape == (3, 30, 30)
    assert found[0, :, 0].min() > 200, "the left end"
    assert found[1, :, -1].min() > 200, "the right end"
    assert WholePicture().box((300, 100)) == (0, 0, 1, 1)
    assert not CentreCrop(size=30, resize=34)(image).any(), "which the middle square lacks"


def test_parts_keep_the_shape_of_the_picture() -> None:
    """Left to right the picture gets brighter, so that the first and last column tell the part."""
    ramp = np.tile(np.arange(200, dtype=np.uint8), (100, 1))
    image = Image.fromarray(np.stack([ramp, ramp, ramp], 2))
    rng, part = np.random.default_rng(0), RandomPart(size=20)
    shares, flipped = [], 0
    for _ in range(400):
        row = part(image, rng)[0, 0].double()
        flipped += int(row[0] > row[-1])
        shares.append(float(abs(row[-1] - row[0])) / 190)  # from one centre of 20 to the last
    assert 0.55 < min(shares) < 0.65
    assert 0.95 < max(shares) < 1.05
    assert np.mean(shares) == pytest.approx(0.8, abs=0.02)
    assert flipped == pytest.approx(200, abs=40)
    assert torch.equal(part(image, np.random.default_rng(1)), part(image, np.random.default_rng(1)))
