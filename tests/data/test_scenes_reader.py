from __future__ import annotations

import pickle
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data.examples import small_split

from gradspace.data import open_dataset, true_relevance
from gradspace.data.cache import cache_folder
from gradspace.data.scenes import Scenes

SMALL: dict[str, Any] = {"num_train": 12, "num_dev": 3, "num_test": 4}


def test_splits_hold_what_the_generator_makes() -> None:
    dataset = open_dataset("scenes", **SMALL, seed=3, num_regions=4, dimension=8)
    assert {n: len(split.image_names) for n, split in dataset.splits.items()} == {
        "train": 12,
        "dev": 3,
        "test": 4,
    }
    scenes = Scenes(split="test", num_images=4, seed=3, num_regions=4, dimension=8)
    split = dataset.splits["test"]
    assert split.captions[5:10] == [caption.text for caption in scenes.captions(1)]
    assert split.image_of_caption.tolist() == [index for index in range(4) for _ in range(5)]
    assert split.images is not None
    assert split.features is not None
    assert len(split.images) == len(split.features) == 4
    assert split.images.load(2).tobytes() == scenes.image(2).tobytes()
    assert np.array_equal(split.features.load(2), scenes.regions(2))
    assert split.features.shape == (4, 8)
    assert pickle.loads(pickle.dumps(split)).images.load(2).size == (128, 128)


def test_a_picture_that_is_kept_cannot_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    images = open_dataset("scenes", **SMALL, seed=4).splits["dev"].images
    assert images is not None
    first = images.load(1)
    before = first.tobytes()
    first.paste(0, (0, 0, 64, 64))
    monkeypatch.setattr(Scenes, "image", lambda *_: pytest.fail("drawn again"))
    assert images.load(1).tobytes() == before


def test_the_second_time_comes_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_dataset("scenes", **SMALL)
    monkeypatch.setattr(Scenes, "regions", lambda *_: pytest.fail("made again"))
    monkeypatch.setattr(Scenes, "captions", lambda *_: pytest.fail("made again"))
    second = open_dataset("scenes", **SMALL)
    assert second.splits["train"].captions == first.splits["train"].captions


def test_truth_is_known() -> None:
    split = open_dataset("scenes", **SMALL).splits["train"]
    truth = true_relevance(split)
    assert truth.shape == (60, 12)
    assert truth[np.arange(60), split.image_of_caption].all()
    with pytest.raises(ValueError, match="only splits of the built-in dataset"):
        true_relevance(small_split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_train": 0}, "num_train is 0; use 1 or more"),
        ({"num_tran": 9}, r"scenes has no parameter 'num_tran'; did you mean 'num_train'"),
        ({"noise": "loud"}, "noise of scenes should be a valid number"),
        ({"images": "folder"}, "scenes has its own images: leave images out"),
    ],
)
def test_bad_options_are_explained(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_dataset("scenes", **options)


def test_a_damaged_cache_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADSPACE_CACHE", str(tmp_path))
    open_dataset("scenes", **SMALL, seed=8)
    (folder,) = cache_folder().glob("*split=train-num_images=12-seed=8-*")
    (folder / "captions.json").write_text("[")
    with pytest.raises(ValueError, match=r"captions.json is not the captions of scenes: "):
        open_dataset("scenes", **SMALL, seed=8)


def open_large() -> list[str]:
    train = open_dataset("scenes", num_train=300, num_dev=1, num_test=1, dimension=9).splits[
        "train"
    ]
    assert train.features is not None
    assert len(train.features) == 300
    return list(train.captions)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_killed_and_simultaneous_processes_leave_a_whole_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADSPACE_CACHE", str(tmp_path))
    fork = get_context("fork")
    killed = fork.Process(target=open_large)
    killed.start()
    while not list(tmp_path.glob(".*/.regions*")):  # it has begun to write
        time.sleep(0.001)
    killed.kill()
    killed.join()
    assert not list(tmp_path.glob("scenes-*"))
    with fork.Pool(2) as pool:
        first, second = [pool.apply_async(open_large) for _ in range(2)]
        assert first.get() == second.get() == open_large()
    assert len(list(tmp_path.glob("scenes-*"))) == 3
    assert len(list(tmp_path.glob(".*"))) == 1  # what the killed one left, until it is a day old
