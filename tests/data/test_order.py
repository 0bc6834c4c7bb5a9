from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from data.examples import small_split

from gradspace.data import Split
from gradspace.data.order import CaptionsPerImage, Plan, epoch_order

SPLIT = small_split(num_images=20, captions=5)


def order(
    captions_per_image: CaptionsPerImage = 1,
    batch_size: int = 8,
    seed: int = 7,
    epoch: int = 0,
    split: Split = SPLIT,
    rank: int = 0,
    world_size: int = 1,
) -> list[Plan]:
    return epoch_order(
        split,
        batch_size=batch_size,
        captions_per_image=captions_per_image,
        seed=seed,
        epoch=epoch,
        rank=rank,
        world_size=world_size,
    )


def flat(plans: list[Plan], name: str) -> list[int]:
    return [int(index) for plan in plans for index in getattr(plan, name)]


def test_an_epoch_visits_every_caption_once_with_its_image() -> None:
    plans = order(batch_size=10)
    assert sorted(flat(plans, "captions")) == list(range(100))
    assert flat(plans, "images") == [caption // 5 for caption in flat(plans, "captions")]
    assert {len(plan.images) for plan in plans} == {10}
    assert len(order(batch_size=8)) == 12  # four captions wait for another epoch


def test_an_epoch_visits_every_image_once_with_all_captions() -> None:
    plans = order("all", batch_size=5)
    assert sorted(flat(plans, "images")) == list(range(20))
    assert sorted(flat(plans, "captions")) == list(range(100))
    for plan in plans:
        expected = [5 * image + k for image in plan.images for k in range(5)]
        assert plan.captions.tolist() == expected


def test_some_captions_are_drawn_anew_in_every_epoch() -> None:
    epochs = [order(2, batch_size=4, epoch=epoch) for epoch in range(30)]
    for plans in epochs:
        captions = flat(plans, "captions")
        assert len(captions) == len(set(captions)) == 40
        images = [caption // 5 for caption in captions]
        assert images == [image for image in flat(plans, "images") for _ in range(2)]
    counts = np.bincount([caption for plans in epochs for caption in flat(plans, "captions")])
    assert counts.min() >= 2
    assert counts.max() <= 25


def test_images_may_have_different_numbers_of_captions() -> None:
    uneven = replace(SPLIT, captions=["x"] * 6, image_names=list("abc"))
    uneven = replace(uneven, image_of_caption=np.array([2, 0, 0, 1, 0, 0]))
    (everything,) = order("all", batch_size=3, split=uneven)
    assert sorted(everything.captions.tolist()) == list(range(6))
    (three,) = order(3, batch_size=3, split=uneven)
    assert uneven.image_of_caption[three.captions].tolist() == [
        image for image in three.images.tolist() for _ in range([3, 1, 1][image])
    ]


@pytest.mark.parametrize("captions_per_image", [1, 3, "all"])
def test_the_order_depends_on_seed_and_epoch_alone(captions_per_image: CaptionsPerImage) -> None:
    def captions(seed: int, epoch: int) -> list[int]:
        return flat(order(captions_per_image, seed=seed, epoch=epoch), "captions")

    assert captions(1, 2) == captions(1, 2)
    orders = [captions(seed, epoch) for epoch in range(3) for seed in range(3)]
    assert all(one != other for one, other in pairwise(orders))


@pytest.mark.parametrize("captions_per_image", [1, 3, "all"])
@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_processes_share_every_batch(captions_per_image: CaptionsPerImage, world_size: int) -> None:
    whole = order(captions_per_image)
    parts = [
        order(captions_per_image, rank=rank, world_size=world_size) for rank in range(world_size)
    ]
    for number, plan in enumerate(whole):
        for name in ("images", "captions", "items"):
            together = flat([part[number] for part in parts], name)
            assert together == getattr(plan, name).tolist()
    sizes = {len(part[0].images) for part in parts}
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; split 'train' has 100 captions to fill it"),
        ({"batch_size": 101}, "batch_size is 101; split 'train' has 100 captions"),
        ({"batch_size": 21, "captions_per_image": "all"}, "split 'train' has 20 images"),
        ({"captions_per_image": "some"}, "captions_per_image is 'some'; use 1 or more"),
        ({"captions_per_image": 0}, "captions_per_image is 0; use 1 or more, or 'all'"),
        ({"world_size": 9}, "batch_size 8 must be at least the number of processes, 9"),
        ({"world_size": 2, "rank": 2}, "rank is 2; 2 processes are numbered from 0"),
    ],
)
def test_bad_parameters_are_explained(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        order(**options)
