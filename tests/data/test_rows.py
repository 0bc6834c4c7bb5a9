"""Hugging Face datasets and Parquet files with pictures, as their own libraries write them."""

from __future__ import annotations

import builtins
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from data.examples import picture, write_images, write_table
from data.tars import bomb, picture_bytes

from gradspace.data.check import check_dataset
from gradspace.data.dataset import Split
from gradspace.data.open import open_dataset
from gradspace.data.readers import parquet

PNG = [picture_bytes(seed, "PNG", (48, 36)) for seed in range(8)]
PICTURE = datasets.Image()
TEXT = datasets.Value("string")


@pytest.fixture(autouse=True)
def _quiet_and_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf-cache")
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def table(captions: list[Any], seeds: list[int], **columns: list[Any]) -> Any:
    kind = datasets.List(TEXT) if isinstance(captions[0], list) else TEXT
    values = {"image": [{"bytes": PNG[s], "path": None} for s in seeds], "caption": captions}
    features = datasets.Features({"image": PICTURE, "caption": kind})
    made = datasets.Dataset.from_dict(values, features)
    for name, column in columns.items():
        made = made.add_column(name, column)
    return made


def assert_pictures(split: Split, seeds: list[int]) -> None:
    assert split.images is not None
    assert len(split.images) == len(split.image_names) == len(seeds)
    for index, seed in enumerate(seeds):
        assert split.images.load(index).tobytes() == picture(seed).tobytes()


def write_parquet(file: Path, **columns: list[Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), file, row_group_size=3)
    return file


def structs(seeds: list[int]) -> list[Any]:
    return [{"bytes": PNG[seed], "path": f"{seed}.png"} for seed in seeds]


# --- Hugging Face -------------------------------------------------------------------------------


def test_a_saved_folder(tmp_path: Path) -> None:
    made = datasets.DatasetDict(
        train=table([["a", "b"], ["c"], ["d", "e"]], [0, 1, 2]),
        validation=table([["f"]], [3]),
        other=table([["g"]], [4]),
    )
    made.save_to_disk(tmp_path / "mine")
    dataset = open_dataset(tmp_path / "mine")
    assert dataset.description == "mine: train 3 images / 5 captions, dev 1 image / 1 caption"
    train = dataset.splits["train"]
    assert train.captions == ["a", "b", "c", "d", "e"]
    assert train.image_of_caption.tolist() == [0, 0, 1, 2, 2]
    assert_pictures(train, [0, 1, 2])
    assert_pictures(dataset.splits["dev"], [3])
    renamed = open_dataset(tmp_path / "mine", test="other", dev="train", train="validation")
    assert [len(split.captions) for split in renamed.splits.values()] == [1, 5, 1]
    with pytest.raises(ValueError, match="no split 'nope', only train, validation, other"):
        open_dataset(tmp_path / "mine", train="nope")


def test_one_table_selected_and_shuffled(tmp_path: Path) -> None:
    made = table([["a"], ["b"], ["c"], ["d"]], [0, 1, 2, 3]).select([3, 1])
    made.save_to_disk(tmp_path / "mine")
    train = open_dataset(tmp_path / "mine").splits["train"]
    assert train.captions == ["d", "b"]
    assert_pictures(train, [3, 1])


def test_the_same_image_in_several_rows(tmp_path: Path) -> None:
    made = table(["a", "b", "c", "d"], [0, 1, 0, 2], cocoid=[7, 8, 7, 9])
    made.save_to_disk(tmp_path / "mine")
    alone = open_dataset(tmp_path / "mine").splits["train"]
    assert_pictures(alone, [0, 1, 0, 2])
    for options in ({"id_column": "cocoid"}, {"by_content": True}):
        train = open_dataset(tmp_path / "mine", **options).splits["train"]
        assert train.captions == ["a", "c", "b", "d"]
        assert train.image_of_caption.tolist() == [0, 0, 1, 2]
        assert_pictures(train, [0, 1, 2])
        assert ("id_column" in options) == (list(train.image_names) == ["7", "8", "9"])
    with pytest.raises(ValueError, match="both say which rows are one image"):
        open_dataset(tmp_path / "mine", id_column="cocoid", by_content=True)
    with pytest.raises(ValueError, match=r"caption is 'cap'; use .* image, caption, cocoid"):
        open_dataset(tmp_path / "mine", caption="cap")
    with pytest.raises(ValueError, match=r"column 'cocoid' has type .*int64.* instead of pictures"):
        open_dataset(tmp_path / "mine", image="cocoid")
    made.remove_columns("caption").save_to_disk(tmp_path / "none")
    with pytest.raises(ValueError, match=r"name it with data\.caption"):
        open_dataset(tmp_path / "none")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it closes no file
def test_a_folder_that_load_dataset_understands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    write_images(tmp_path / "mine/train", ["a.png", "b.png"])
    (tmp_path / "mine/train/metadata.csv").write_text("file_name,text\na.png,one\nb.png,two\n")
    train = open_dataset(f"hf:{tmp_path}/mine").splits["train"]
    assert train.captions == ["one", "two"]
    assert_pictures(train, [0, 1])
    gc.collect()  # or a later test would hear of the file
    with pytest.raises(ValueError, match=r"hf:no/such cannot be opened by datasets: \w"):
        open_dataset("hf:no/such")
    gc.collect()  # what it left open is closed here, and not in the test that comes next


def test_files_outside_are_not_read(tmp_path: Path) -> None:
    write_images(tmp_path, ["secret.png"])
    table(["a", "b"], [0, 1]).save_to_disk(tmp_path / "mine")
    [arrow] = (tmp_path / "mine").glob("*.arrow")
    outside = {"bytes": None, "path": str(tmp_path / "secret.png")}
    rows = pyarrow.table({"image": [outside, {"bytes": None, "path": None}], "caption": ["a", "b"]})
    kept = pyarrow.ipc.open_stream(arrow).schema
    with pyarrow.ipc.new_stream(arrow, kept) as out:
        out.write_table(rows.cast(kept))
    found = open_dataset(tmp_path / "mine").splits["train"].images
    assert found is not None
    with pytest.raises(ValueError, match="leads out of"):
        found.load(0)
    with pytest.raises(ValueError, match="there is no picture in its row"):
        found.load(1)


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name == "datasets":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ValueError, match=r"pip install 'gradspace\[datasets\]'"):
        open_dataset("hf:owner/name")


# --- Parquet ------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [False, True], ids=["struct", "binary"])
def test_parquet(plain: bool, tmp_path: Path) -> None:
    def pictures(seeds: list[int]) -> list[Any]:
        return [PNG[seed] for seed in seeds] if plain else structs(seeds)

    folder = tmp_path / "mine"
    many = pictures([0, 1, 2, 3, 4])
    write_parquet(folder / "train-0.parquet", image=many, caption=list("abcde"), id=[1, 2, 1, 3, 4])
    write_parquet(folder / "train-1.parquet", image=pictures([5, 0]), caption=["f", "g"], id=[5, 1])
    write_parquet(folder / "validation-0.parquet", image=pictures([6]), caption=["h"], id=[6])
    dataset = open_dataset(folder)
    assert dataset.description == "mine: train 7 images / 7 captions, dev 1 image / 1 caption"
    assert_pictures(dataset.splits["train"], [0, 1, 2, 3, 4, 5, 0])
    assert_pictures(dataset.splits["dev"], [6])
    train = open_dataset(folder, id_column="id").splits["train"]
    assert train.captions == ["a", "c", "g", "b", "d", "e", "f"]
    assert_pictures(train, [0, 1, 3, 4, 5])
    by_content = open_dataset(folder, by_content=True).splits["train"]
    assert_pictures(by_content, [0, 1, 2, 3, 4, 5])
    globbed = open_dataset(folder / "train-*.parquet").splits
    assert list(globbed) == ["train"]
    alone = open_dataset(folder / "validation-0.parquet").splits["dev"]
    assert_pictures(alone, [6])


def test_parquet_without_split_names(tmp_path: Path) -> None:
    write_parquet(tmp_path / "x.parquet", image=structs(list(range(8))), caption=list("abcdefgh"))
    dataset = open_dataset(tmp_path)
    assert {name: len(split.captions) for name, split in dataset.splits.items()} == {
        "train": 6,
        "dev": 1,
        "test": 1,
    }
    assert "10%" in dataset.drawn
    for split in dataset.splits.values():
        assert_pictures(split, ["abcdefgh".index(caption) for caption in split.captions])


def test_pictures_are_copied_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_parquet(tmp_path / "train.parquet", image=structs([0, 1]), caption=["a", "b"])
    told: list[tuple[int, int]] = []
    open_dataset(file, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 1)]
    monkeypatch.setattr(parquet, "_copy", pytest.fail)
    assert_pictures(open_dataset(file).splits["train"], [0, 1])
    monkeypatch.undo()
    write_parquet(file, image=structs([3, 1, 2]), caption=["a", "b", "c"])
    assert_pictures(open_dataset(file).splits["train"], [3, 1, 2])


def test_a_table_of_names_is_still_a_table(tmp_path: Path) -> None:
    write_table(tmp_path)
    names = ["a.jpg", "b.png"]
    (tmp_path / "captions.tsv").unlink()
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.txt").unlink()
    write_parquet(tmp_path / "captions.parquet", image=names, caption=["one", "two"])
    dataset = open_dataset(tmp_path, dev_share=0.0, test_share=0.0)
    assert dataset.splits["train"].captions == ["one", "two"]


def test_what_is_wrong_in_rows_is_named(tmp_path: Path) -> None:
    pictures = [
        *structs([0]),
        {"bytes": bomb(), "path": ""},
        {"bytes": None, "path": "/etc/passwd"},
    ]
    pictures += [{"bytes": b"?", "path": ""}, *structs([1])]
    write_parquet(tmp_path / "train.parquet", image=pictures, caption=["a", "b", "c", "d", None])
    found = [str(problem) for problem in check_dataset(tmp_path).problems]
    assert len(found) == 4
    assert found[0] == "image without caption: train-00000004 (train)"
    assert all(line.startswith("broken image: train-0000000") for line in found[1:])
    assert "there is no picture in its row" in found[2]
    left = open_dataset(tmp_path, skip_broken=True).splits["train"]
    assert_pictures(left, [0])


@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_a_truncated_parquet_is_one_sentence(kept: float, tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "train.parquet", image=structs([0, 1]), caption=["a", "b"])
    data = file.read_bytes()
    file.write_bytes(data[: int(kept * len(data))])
    with pytest.raises(ValueError, match=r"train\.parquet"):
        open_dataset(file)


def test_damaged_pages_leave_no_half_copy(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).bytes(5000)
    file = write_parquet(tmp_path / "train.parquet", image=[noise] * 9, caption=["a"] * 9)
    data = bytearray(file.read_bytes())
    data[4:2000] = bytes(1996)
    file.write_bytes(data)
    with pytest.raises(ValueError, match=r"train\.parquet cannot be read: \w.*[^\n]$"):
        open_dataset(file)
    with pytest.raises(ValueError, match=r"train\.parquet cannot be read: \w.*[^\n]$"):
        open_dataset(file)
