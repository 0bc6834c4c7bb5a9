from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from data.examples import captions_of

from gradspace.data import open_dataset


def write_split(folder: Path, split: str, num_images: int, per_image: int, rows: int = 1) -> Path:
    """SCAN's files; `rows` equal rows of features per image, [4, 8] each."""
    folder.mkdir(exist_ok=True)
    features = np.random.default_rng(num_images).random((num_images, 4, 8), np.float32)
    np.save(folder / f"{split}_ims.npy", np.repeat(features, rows, axis=0))
    captions = [text for i in range(num_images) for text in captions_of(str(i), per_image)]
    (folder / f"{split}_caps.txt").write_text("\n".join(captions) + "\n")
    return folder


@pytest.mark.parametrize(("per_image", "rows"), [(5, 1), (5, 5), (1, 1), (3, 1)])
def test_rows_per_image_or_per_caption(tmp_path: Path, per_image: int, rows: int) -> None:
    for name, num_images in (("testall", 3), ("train", 6), ("dev", 2)):
        write_split(tmp_path / "f30k", name, num_images, per_image, rows)
    dataset = open_dataset(tmp_path / "f30k")
    assert list(dataset.splits) == ["train", "dev", "testall"]
    split = dataset.splits["train"]
    assert split.features is not None
    assert split.images is None
    assert (len(split.features), split.features.shape) == (6, (4, 8))
    expected = np.random.default_rng(6).random((6, 4, 8), np.float32)
    assert np.array_equal(split.features.load(4), expected[4])
    assert split.captions[per_image] == "caption 0 of 1"
    assert split.image_of_caption.tolist() == [i for i in range(6) for _ in range(per_image)]
    assert split.image_names[3] == "train-000003"


@pytest.mark.parametrize("repeat", [1, 5])
def test_ids_are_names(tmp_path: Path, repeat: int) -> None:
    write_split(tmp_path, "test", 3, 5)
    ids = tmp_path / "test_ids.txt"
    ids.write_text("\n".join(name for name in ("x", "y", "z") for _ in range(repeat)))
    assert open_dataset(tmp_path).splits["test"].image_names == ["x", "y", "z"]
    ids.write_text("x\ny\n")
    with pytest.raises(ValueError, match=r"test_ids.txt has 2 lines; expected 3, .* or 15"):
        open_dataset(tmp_path)


def test_testall_may_hold_test_but_not_train(tmp_path: Path) -> None:
    for split, ids in (("train", "a b"), ("test", "c"), ("testall", "c d")):
        write_split(tmp_path, split, len(ids.split()), 5)
        (tmp_path / f"{split}_ids.txt").write_text(ids.replace(" ", "\n"))
    assert open_dataset(tmp_path).problems == ()
    (tmp_path / "train_ids.txt").write_text("a\nd\n")
    with pytest.raises(ValueError, match=r"image in two splits: d \(train\), also in testall"):
        open_dataset(tmp_path)


def test_a_caption_may_hold_strange_characters(tmp_path: Path) -> None:
    write_split(tmp_path, "train", 2, 1)
    (tmp_path / "train_caps.txt").write_bytes("one\x0b\u2028still one\r\ntwo".encode())
    assert open_dataset(tmp_path).splits["train"].captions == ["one\x0b\u2028still one", "two"]


def test_bad_folders_are_explained(tmp_path: Path) -> None:
    write_split(tmp_path, "train", 3, 5)
    captions = tmp_path / "train_caps.txt"
    whole = captions.read_text()
    captions.write_text(whole + "one more\n")
    with pytest.raises(ValueError, match=r"has 16 captions for 3 rows of train_ims.npy"):
        open_dataset(tmp_path)
    captions.write_text(whole.replace("caption 1 of 2", " "))
    with pytest.raises(ValueError, match=r"empty caption: caption 2 of train-000002 \(train\)"):
        open_dataset(tmp_path)
    assert len(open_dataset(tmp_path, skip_broken=True).splits["train"].captions) == 14
    captions.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"train_caps.txt is not valid UTF-8"):
        open_dataset(tmp_path)
    captions.unlink()
    with pytest.raises(ValueError, match=r"train_caps.txt does not exist"):
        open_dataset(tmp_path)
    with pytest.raises(ValueError, match="leave images out"):
        open_dataset(tmp_path, images=tmp_path)
    np.save(tmp_path / "extra_ims.npy", np.zeros((1, 1), np.float32))
    with pytest.raises(
        ValueError, match=r"has extra_ims.npy: splits are train, dev, test, testall"
    ):
        open_dataset(tmp_path)
