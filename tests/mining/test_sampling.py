"""Draws of offline negatives: their distributions, what they leave out, and what they depend on."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mining.made import random_lists, random_split
from numpy.typing import NDArray
from scipy.stats import chisquare

from gradspace.data.dataset import Split, make_split
from gradspace.mining import MinedLists, OfflineDraw, Sampling, draw_offline

SPLIT = random_split()
LISTS = random_lists(SPLIT)
SMALL = Sampling(num_texts=30, num_images=6)
OWNER = np.asarray(SPLIT.image_of_caption)
EPOCHS = 400


def draw(
    sampling: Sampling,
    captions: NDArray[np.int64] | None = None,
    *,
    lists: MinedLists = LISTS,
    split: Split = SPLIT,
    seed: int = 0,
    epoch: int = 0,
) -> OfflineDraw:
    captions = np.arange(len(split.captions)) if captions is None else captions
    images = split.image_of_caption[captions]
    return draw_offline(lists, split, sampling, images, captions, seed, epoch)


def ranks(sampling: Sampling, **options: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places in the lists of all draws of many epochs, [epochs, captions] each."""
    texts, images = [], []
    for epoch in range(EPOCHS):
        found = draw(sampling, epoch=epoch, **options)
        texts.append((LISTS.texts_of_image[OWNER] == found.texts[:, None]).argmax(1))
        images.append((LISTS.images_of_text == found.images[:, None]).argmax(1))
    return np.array(texts), np.array(images)


def assert_uniform(values: NDArray[np.int64], first: int, number: int) -> None:
    counts = np.bincount(values.reshape(-1), minlength=first + number)
    assert counts[:first].sum() == 0
    assert len(counts) == first + number
    assert chisquare(counts[first:]).pvalue > 1e-3


def test_all_four_belong_together() -> None:
    found = draw(replace(SMALL, shared=False))
    every = np.arange(len(OWNER))
    assert (LISTS.texts_of_image[OWNER] == found.texts[:, None]).any(1).all()
    assert (LISTS.images_of_text[every] == found.images[:, None]).any(1).all()
    assert (OWNER[found.texts_of_images] == found.images).all()
    assert (OWNER[found.texts] == found.images_of_texts).all()
    assert {getattr(found, field.name).dtype for field in fields(found)} == {np.dtype(np.int64)}


@pytest.mark.parametrize("shared", [True, False])
def test_uniform_draws_are_uniform(shared: bool) -> None:
    texts, images = ranks(replace(SMALL, shared=shared))
    assert_uniform(texts, 0, 30)
    assert_uniform(images, 0, 6)
    for caption in (0, 7, 50):  # also for one pair, from epoch to epoch
        assert_uniform(texts[:, caption], 0, 30)
    assert_uniform(texts[17], 0, 30)


def test_uniform_over_the_start_of_a_list() -> None:
    texts, images = ranks(Sampling(num_texts=12, num_images=3, shared=False))
    assert_uniform(texts, 0, 12)
    assert_uniform(images, 0, 3)


def test_the_shared_draw_is_one_number() -> None:
    texts, images = ranks(SMALL)
    assert (images == texts // 5).all()
    texts, images = ranks(replace(SMALL, shared=False))
    assert 0.1 < (images == texts // 5).mean() < 0.25  # 1 in 6, by chance
    pairs = np.bincount((texts * 6 + images).reshape(-1), minlength=180)
    assert chisquare(pairs).pvalue > 1e-3  # independent


@pytest.mark.parametrize("num_texts", [7, 30])
def test_the_shared_draw_of_lists_in_any_proportion(num_texts: int) -> None:
    texts, images = ranks(Sampling(num_texts=num_texts, num_images=6))
    assert (images == np.floor(texts / (num_texts / 6) + 1e-9)).all()


@pytest.mark.parametrize("skip", [0, 2])
def test_normal_draws_are_normal(skip: int) -> None:
    """The standard deviation of a sixth, and a little for rounding to whole ranks."""
    texts, images = ranks(replace(SMALL, draw="normal", shared=False, skip=skip))
    for values, number in ((texts, 30 - skip), (images, 6 - skip)):
        assert values.min() == skip
        assert values.max() == skip + number - 1
        assert abs(values.mean() - (skip + (number - 1) / 2)) < 0.02 * number**0.5
        assert values.std() == pytest.approx(((number / 6) ** 2 + 1 / 12) ** 0.5, rel=0.02)


def test_normal_draws_have_the_probabilities_of_the_formula() -> None:
    from scipy.stats import norm

    texts, _ = ranks(replace(SMALL, draw="normal"))
    edges = np.arange(1, 30) - 0.5  # round(x) <= rank exactly where x < rank + 1/2
    below = norm.cdf((edges - 29 / 2) / (30 / 6))
    expected = np.diff(np.concatenate([[0], below, [1]]))  # clamped: the ends take the tails
    counts = np.bincount(texts.reshape(-1), minlength=30)
    assert chisquare(counts, expected * counts.sum()).pvalue > 1e-3


def test_captions_of_the_image_are_drawn_by_lot() -> None:
    split = random_split(6)
    lists = random_lists(split, 10, 5)
    sampling = Sampling(num_texts=10, num_images=5, shared=False)
    epochs = range(600)
    found = np.stack(
        [draw(sampling, lists=lists, split=split, epoch=e).texts_of_images for e in epochs]
    )
    for image in range(6):
        own = np.flatnonzero(split.image_of_caption == image)
        counts = np.bincount(found[np.isin(found, own)], minlength=len(split.captions))[own]
        assert (counts > 0).all()
        assert len(own) == 1 or chisquare(counts).pvalue > 1e-3


def test_the_caption_by_lot_does_not_depend_on_the_rank() -> None:
    """Two captions per image: of those drawn at any rank, half are the second."""
    split = make_split("train", [(f"{image}.jpg", ["one", "two"]) for image in range(40)])
    lists = random_lists(split)
    counts = np.zeros((6, 2), np.int64)
    for epoch in range(100):
        found = draw(SMALL, lists=lists, split=split, epoch=epoch)
        rank = (lists.images_of_text == found.images[:, None]).argmax(1)
        np.add.at(counts, (rank, found.texts_of_images % 2), 1)
    assert chisquare(counts.reshape(-1)).pvalue > 1e-3


def test_captions_in_any_order() -> None:
    split = random_split(shuffled=True)
    found = draw(SMALL, lists=random_lists(split), split=split)
    assert (split.image_of_caption[found.texts_of_images] == found.images).all()
    assert (split.image_of_caption[found.texts] == found.images_of_texts).all()


def test_skip_leaves_the_first_out() -> None:
    texts, images = ranks(replace(SMALL, skip=4, shared=False))
    assert_uniform(texts, 4, 26)
    assert_uniform(images, 4, 2)
    texts, images = ranks(replace(SMALL, skip=4))
    assert (images - 4 == (texts - 4) * 2 // 26).all()


@pytest.mark.parametrize(("above", "skip"), [(0.1, 0), (-0.2, 0), (0.0, 3), (-2.0, 0)])
def test_above_leaves_likely_positives_out(above: float, skip: int) -> None:
    texts, images = ranks(replace(SMALL, above=above, skip=skip, shared=False))
    emptied = 0
    for caption, image in enumerate(OWNER):
        limit = np.float32(LISTS.positive_scores[caption]) + np.float32(above)
        for drawn, scores in (
            (texts[:, caption], LISTS.text_scores[image]),
            (images[:, caption], LISTS.image_scores[caption]),
        ):
            left = [r for r, score in enumerate(scores) if score <= limit and r >= skip]
            emptied += not left
            assert set(drawn.tolist()) == set(left or [len(scores) - 1])
    assert emptied > 0 or above == 0.1


@given(st.lists(st.integers(0, len(OWNER) - 1), max_size=40), st.integers(0, 40), st.booleans())
def test_a_draw_depends_on_its_pair_alone(batch: list[int], cut: int, shared: bool) -> None:
    sampling = replace(SMALL, shared=shared, above=0.1)
    captions = np.array(batch, np.int64)
    all_pairs, whole = draw(sampling, seed=3), draw(sampling, captions, seed=3)
    parts = [draw(sampling, part, seed=3) for part in (captions[:cut], captions[cut:])]
    for field in fields(OfflineDraw):
        name = field.name
        found = getattr(whole, name)
        assert (found == getattr(all_pairs, name)[captions]).all()
        assert (found == np.concatenate([getattr(part, name) for part in parts])).all()


def test_other_seeds_and_epochs_draw_otherwise() -> None:
    first = draw(SMALL, seed=1, epoch=2).texts
    assert (draw(SMALL, seed=1, epoch=2).texts == first).all()
    for seed, epoch in ((1, 3), (2, 2), (2, 1), (0, 0), (-1, 2), (2**63 + 1, 2)):
        assert (draw(SMALL, seed=seed, epoch=epoch).texts == first).mean() < 0.3


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draw": "flat"}, "draw is 'flat'; use 'uniform' or 'normal'"),
        ({"num_texts": 0}, "num_texts is 0; use at least 1"),
        ({"num_images": -3}, "num_images is -3; use at least 1"),
        ({"skip": -1}, "skip is -1 and num_texts is 300; skip at least 0 and at most 299"),
        ({"skip": 60}, "skip is 60 and num_images is 60; skip at least 0 and at most 59 entries"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**options)


def test_lists_that_are_too_short() -> None:
    with pytest.raises(ValueError, match="num_texts is 300, and the mined lists have 30 entries"):
        draw(Sampling())
    with pytest.raises(ValueError, match=r"num_images is 60, .* 6 entries: use at most 6, or mine"):
        draw(Sampling(num_texts=30))


def test_pairs_that_are_none() -> None:
    first = np.flatnonzero(OWNER == 1)[:1]
    with pytest.raises(ValueError, match="got 2 images and 1 captions; repeat an image for each"):
        draw_offline(LISTS, SPLIT, SMALL, np.array([1, 1]), first, 0, 0)
    with pytest.raises(ValueError, match=f"got image 2 with caption {first[0]} of image 1"):
        draw_offline(LISTS, SPLIT, SMALL, np.array([2]), first, 0, 0)


def test_an_image_without_a_caption() -> None:
    owner = np.where(OWNER == 17, 16, OWNER)
    split = replace(SPLIT, image_of_caption=owner)
    lists = replace(LISTS, images_of_text=np.full_like(LISTS.images_of_text, 17))
    with pytest.raises(ValueError, match=r"image 17 \(17.jpg\) has no caption to be drawn"):
        draw(SMALL, lists=lists, split=split)
