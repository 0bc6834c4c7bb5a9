from __future__ import annotations

import json
from pathlib import Path

import pytest
from data.examples import captions_of, write_images, write_karpathy, zip_folder

from gradspace.data import open_dataset

ENTRIES = [
    ("a.jpg", "train", captions_of("a.jpg", 5)),
    ("b.jpg", "val", captions_of("b.jpg", 6)),
    ("c.jpg", "restval", captions_of("c.jpg", 5)),
    ("d.jpg", "test", captions_of("d.jpg", 5)),
]
NAMES = [name for name, _, _ in ENTRIES]


def test_restval_joins_train_and_val_is_dev(tmp_path: Path) -> None:
    file = write_karpathy(tmp_path / "dataset_flickr8k.json", ENTRIES)
    write_images(tmp_path / "Flicker8k_Dataset", NAMES)
    for source in (file, tmp_path):
        dataset = open_dataset(source)
        assert dataset.name == "flickr8k"
        assert list(dataset.splits) == ["train", "dev", "test"]
        train, dev = dataset.splits["train"], dataset.splits["dev"]
        assert train.image_names == ["a.jpg", "c.jpg"]
        assert train.captions[5:] == captions_of("c.jpg", 5)
        assert dev.image_of_caption.tolist() == [0] * 6
        assert dev.images is not None
        assert dev.images.load(0).size == (48, 36)


@pytest.mark.parametrize("folder", ["val2014", ""])
@pytest.mark.parametrize("zipped", [False, True])
def test_coco_images_lie_in_their_folder_or_in_one(
    tmp_path: Path, folder: str, zipped: bool
) -> None:
    file = write_karpathy(tmp_path / "dataset_coco.json", ENTRIES, folder="val2014")
    images = tmp_path / "elsewhere"
    write_images(images / folder, NAMES)
    if zipped:
        images = zip_folder(images, tmp_path / "coco.zip")
    for given in (images, None):
        split = open_dataset(file, images=given).splits["test"]
        assert split.images is not None
        assert split.images.load(0).size == (48, 36)
    if folder and not zipped:
        assert split.image_names == ["val2014/d.jpg"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"is not a dataset in Karpathy's layout: Invalid JSON"),
        ('{"words": []}', "images: Field required"),
        ('{"images": [{"filename": "a.jpg", "split": "train"}]}', "images.0.sentences: Field"),
        (
            '{"images": [{"filename": "a.jpg", "split": "../x", "sentences": []}]}',
            "images.0.split: Input should be 'train', 'restval'",
        ),
        ('{"images": []}', "has no images at all"),
    ],
)
def test_bad_files_are_explained(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "dataset_x.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        open_dataset(tmp_path)


def test_problems_are_named(tmp_path: Path) -> None:
    file = write_karpathy(tmp_path / "dataset_x.json", [*ENTRIES, ("a.jpg", "train", ["again"])])
    with pytest.raises(ValueError, match="no images beside the captions"):
        open_dataset(file)
    write_images(tmp_path, NAMES)
    with pytest.raises(
        ValueError, match=r"has 1 problem, the first is duplicate image: a.jpg \(train\)"
    ):
        open_dataset(file)
    dataset = open_dataset(file, skip_broken=True)
    assert dataset.splits["train"].image_names == ["a.jpg", "c.jpg"]
    assert "again" not in dataset.splits["train"].captions
    assert [problem.kind for problem in dataset.problems] == ["duplicate image"]
    (tmp_path / "dataset_y.json").write_text(json.dumps({"images": []}))
    with pytest.raises(ValueError, match=r"has 2 files dataset\*.json; give only one"):
        open_dataset(tmp_path)
