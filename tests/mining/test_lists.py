"""Files of mined lists: one that fits is mapped, any other is refused in one sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from mining.made import odd_embeddings, random_lists, random_split

from gradspace.data.dataset import make_split
from gradspace.mining import load_lists, mine_exact, save_lists
from gradspace.mining.lists import ARRAYS
from gradspace.scores.represented import save_embeddings
from gradspace.tensor_files import load_tensors, save_tensors


def resident_megabytes() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def test_saved_and_loaded(tmp_path: Path) -> None:
    source = {"run": "runs/first", "dataset": "made-up", "split": "train"}
    lists = mine_exact(odd_embeddings(), top_texts=7, top_images=4, source=source)
    save_lists(tmp_path / "lists", lists)
    loaded = load_lists(tmp_path / "lists")
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(loaded, name), getattr(lists, name))
        assert getattr(loaded, name).dtype == getattr(lists, name).dtype
    assert loaded.record == lists.record
    assert loaded.record["source"] == source
    save_lists(tmp_path / "again", loaded)
    assert (tmp_path / "again").read_bytes() == (tmp_path / "lists").read_bytes()


def test_only_rows_that_are_asked_for_are_read(tmp_path: Path) -> None:
    lists = random_lists(random_split())
    long = np.zeros((40, 500_000), np.int32)  # 80 MB
    save_lists(tmp_path / "lists", replace(lists, texts_of_image=long))
    del long
    before = resident_megabytes()
    loaded = load_lists(tmp_path / "lists")
    assert loaded.texts_of_image[[3, 20], 1000].tolist() == [0, 0]
    assert resident_megabytes() - before < 20
    assert loaded.texts_of_image.sum() == 0
    assert resident_megabytes() - before > 60  # mapped, now that all was read


def test_lists_that_match() -> None:
    split = random_split()
    random_lists(split).check_matches(split)


def test_lists_of_another_split() -> None:
    lists = random_lists(random_split())
    other = make_split("dev", [("a.jpg", ["one", "two"])])
    with pytest.raises(ValueError, match="the lists were mined on train of made-up") as error:
        lists.check_matches(other)
    assert "(40 images, " in str(error.value)
    assert "and this is dev (1 image, 2 captions, digest " in str(error.value)
    unnamed = replace(lists, record={**lists.record, "source": {}})
    with pytest.raises(ValueError, match="the lists were mined on 40 images, "):
        unnamed.check_matches(other)
    split = random_split()
    changed = replace(split, captions=["another", *split.captions[1:]])
    with pytest.raises(ValueError, match="mine lists on the split that is trained on"):
        lists.check_matches(changed)


def test_a_listed_image_without_a_caption_is_named() -> None:
    split = random_split()
    owner = np.where(split.image_of_caption == 17, 16, split.image_of_caption)
    split = replace(split, image_of_caption=owner)
    lists = random_lists(split)
    with pytest.raises(ValueError, match=r"image 17 \(17.jpg\) is listed as a negative and has no"):
        lists.check_matches(split)
    unlisted = np.where(lists.images_of_text == 17, 18, lists.images_of_text)
    replace(lists, images_of_text=unlisted).check_matches(split)


def test_files_that_are_no_lists(tmp_path: Path) -> None:
    def refused(message: str, name: str) -> None:
        with pytest.raises(ValueError, match=message):
            load_lists(tmp_path / name)

    refused("absent does not exist: expected a file of mined lists", "absent")
    save_lists(tmp_path / "lists", random_lists(random_split()))
    content = (tmp_path / "lists").read_bytes()
    for length in (0, 5, 200, len(content) - 1):
        (tmp_path / "cut").write_bytes(content[:length])
        refused("cut is truncated, or not a file of mined lists .*mine it again", "cut")
    (tmp_path / "text").write_text("a caption\n" * 100)
    refused("text is truncated, or not a file of mined lists", "text")
    save_embeddings(tmp_path / "embeddings", odd_embeddings())
    refused("embeddings is a gradspace file, but not one of mined lists", "embeddings")
    tensors, record = load_tensors(tmp_path / "lists")
    save_tensors(tmp_path / "new", tensors, {**record, "version": 2})
    refused("new holds mined lists of version 2, and this gradspace reads version 1", "new")
    save_tensors(tmp_path / "odd", {"texts": torch.ones(2)}, record)
    refused("odd is a gradspace file, but not one of mined lists", "odd")
