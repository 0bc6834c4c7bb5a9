from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from data.examples import FLICKR8K, NAMES, needs_flickr8k, write_images, write_table, zip_folder

from gradspace.data import Dataset, Split, open_dataset
from gradspace.data.check import check_dataset
from gradspace.data.open import is_dataset

EVERY = [name for names in NAMES.values() for name in names]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_table(tmp_path / "small")


def names_of(dataset: Dataset) -> dict[str, list[str]]:
    return {name: list(split.image_names) for name, split in dataset.splits.items()}


def remove_split_files(folder: Path) -> None:
    for split in NAMES:
        (folder / f"{split}.txt").unlink()


def assert_is_small(split: Split) -> None:
    assert split.captions[:3] == ["caption 0 of a.jpg", "caption 1 of a.jpg", "caption 0 of b.png"]
    assert split.image_of_caption.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert split.images is not None
    assert [split.images.load(index).size for index in range(4)] == [(48, 36)] * 4


def test_a_folder_opens_as_it_lies_there(folder: Path) -> None:
    for source in (folder, folder / "captions.tsv", str(folder)):
        dataset = open_dataset(source)
        assert names_of(dataset) == NAMES
        assert_is_small(dataset.splits["train"])


def rewrite(folder: Path, suffix: str) -> None:
    rows = [line.split("\t") for line in (folder / "captions.tsv").read_text().splitlines()]
    (folder / "captions.tsv").unlink()
    if suffix == ".csv":
        with open(folder / "captions.csv", "w", encoding="utf-8-sig", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)
    else:
        columns = dict(zip(rows[0], zip(*rows[1:], strict=True), strict=True))
        table = pyarrow.table({**columns, "height": [36] * (len(rows) - 1)})
        pyarrow.parquet.write_table(table, folder / "captions.parquet")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("zipped", [False, True])
def test_every_format_is_the_same(folder: Path, suffix: str, zipped: bool) -> None:
    rewrite(folder, suffix)
    if zipped:
        zip_folder(folder / "images", folder / "photos.zip", "photos/")
        shutil.rmtree(folder / "images")
    assert_is_small(open_dataset(folder).splits["train"])


def test_quotes_in_tsv_are_characters(folder: Path) -> None:
    table = folder / "captions.tsv"
    table.write_text(table.read_text().replace("caption 0 of e.jpg", "a \"quoted' sign"))
    assert open_dataset(folder).splits["dev"].captions[0] == "a \"quoted' sign"


def test_images_can_be_elsewhere(folder: Path, tmp_path: Path) -> None:
    (folder / "images").rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"no images beside the captions of .* give their folder"):
        open_dataset(folder)
    assert_is_small(open_dataset(folder, images=tmp_path / "elsewhere").splits["train"])


def test_val_is_dev_and_rows_need_no_order(folder: Path) -> None:
    (folder / "dev.txt").rename(folder / "val.txt")
    table = folder / "captions.tsv"
    header, *rows = table.read_text().splitlines()
    table.write_text("\n".join([header, *rows[::2], *rows[1::2]]))
    dataset = open_dataset(folder)
    assert names_of(dataset) == NAMES
    assert_is_small(dataset.splits["train"])
    (folder / "dev.txt").write_text("a.jpg")
    with pytest.raises(ValueError, match=r"has dev.txt and val.txt; remove one"):
        open_dataset(folder)


def test_images_that_no_split_names_are_not_used(folder: Path) -> None:
    (folder / "train.txt").write_text("b.png\n\n")
    dataset = open_dataset(folder)
    assert names_of(dataset)["train"] == ["b.png"]
    assert dataset.problems == ()


def test_splits_that_nobody_has_named_are_announced(folder: Path) -> None:
    assert not open_dataset(folder).drawn
    remove_split_files(folder)
    dataset = open_dataset(folder, dev_share=0.2)
    [sizes, told] = dataset.description.split("; ")
    shown = [f"{name} {split.sizes}" for name, split in dataset.splits.items()]
    assert sizes == f"small: {', '.join(shown)}"
    assert told.startswith("no splits are named, so 20% of the images are dev and 10% test, cho")
    assert dataset.splits["test"].announcement == f"test: {dataset.splits['test'].sizes}; {told}"
    assert f"\n  {told}\n" in str(check_dataset(folder, dev_share=0.2))


def test_without_split_files_a_column_decides(folder: Path) -> None:
    remove_split_files(folder)
    table = folder / "captions.tsv"
    header, *rows = table.read_text().splitlines()
    split_of = {name: split for split, names in NAMES.items() for name in names}
    with_split = [f"{split_of[row.split()[0]].replace('dev', 'val')}\t{row}" for row in rows]
    table.write_text("\n".join([f"split\t{header}", *with_split]))
    assert names_of(open_dataset(folder)) == NAMES
    assert not open_dataset(folder).drawn
    table.write_text(table.read_text().replace("val\te", "valid\te"))
    with pytest.raises(ValueError, match=r"line 10 of captions.tsv has split 'valid'; expected"):
        open_dataset(folder)


def test_without_any_splits_a_hash_decides(tmp_path: Path) -> None:
    names = [f"{number}.png" for number in range(30)]
    write_images(tmp_path / "images", names, (8, 8))
    table = tmp_path / "captions.csv"
    table.write_text("\n".join(["image,caption", *(f"{name},text" for name in names)]))
    found = names_of(open_dataset(table))
    assert {split: len(part) for split, part in found.items()} == {"train": 24, "dev": 3, "test": 3}
    assert sorted(name for part in found.values() for name in part) == sorted(names)
    table.write_text("\n".join(["image,caption", *(f"{name},text" for name in names[::-1])]))
    again = names_of(open_dataset(table))
    assert {split: set(part) for split, part in again.items()} == {
        split: set(part) for split, part in found.items()
    }
    assert list(names_of(open_dataset(table, dev_share=0.0, test_share=1))) == ["test"]
    assert len(names_of(open_dataset(table, dev_share=0.001))["dev"]) == 1
    with pytest.raises(ValueError, match=r"add up to at most 1, got 0.6 and 0.6"):
        open_dataset(table, dev_share=0.6, test_share=0.6)
    with pytest.raises(ValueError, match="dev_share of table should be greater than or equal to 0"):
        open_dataset(table, dev_share=-1)


@pytest.mark.parametrize(
    ("rows", "problem", "captions_left"),
    [
        ("\tno name", r"caption without image: line 14 of captions.tsv", 8),
        ("z.jpg\tnobody", r"caption without image: z.jpg, in no split and no image file", 8),
        ("a.jpg", r"malformed row: line 14 of captions.tsv, 1 field instead of 2", 8),
        ("a.jpg\tone\ttwo", r"malformed row: line 14 of captions.tsv, 3 fields instead", 8),
        ("a.jpg\t \n", r"empty caption: caption 3 of a.jpg \(train\)", 8),
    ],
)
def test_bad_rows_are_named_and_skipped_when_asked(
    folder: Path, rows: str, problem: str, captions_left: int
) -> None:
    table = folder / "captions.tsv"
    table.write_text(table.read_text() + rows)
    with pytest.raises(ValueError, match=rf"has 1 problem, the first is {problem}"):
        open_dataset(folder)
    dataset = open_dataset(folder, skip_broken=True)
    assert len(dataset.splits["train"].captions) == captions_left
    assert len(dataset.problems) == 1


@pytest.mark.parametrize(
    ("split", "lines", "problem", "left"),
    [
        ("train", "a.jpg\na.jpg", r"duplicate image: a.jpg \(train\)", {"train": ["a.jpg"]}),
        ("train", "a.jpg\ne.jpg", r"image in two splits: e.jpg \(train\), also in dev", None),
        ("dev", "e.jpg\nf.jpg", r"image in two splits: f.jpg \(dev\), also in test", None),
        ("dev", "e.jpg\nno.jpg", r"missing image: no.jpg \(dev\), not in .*images", None),
        ("dev", "e.jpg\n../x.jpg", r"missing image: \.\./x.jpg \(dev\), the name leads out", None),
        ("dev", "e.jpg\ng.jpg", r"image without caption: g.jpg \(dev\)", None),
    ],
)
def test_bad_images_are_named_and_skipped_when_asked(
    folder: Path, split: str, lines: str, problem: str, left: dict[str, list[str]] | None
) -> None:
    write_images(folder / "images", ["g.jpg"])
    write_images(folder, ["x.jpg"])
    (folder / f"{split}.txt").write_text(lines)
    with pytest.raises(ValueError, match=problem):
        open_dataset(folder)
    dataset = open_dataset(folder, skip_broken=True)
    expected = {**NAMES, split: lines.splitlines()[:1], **(left or {})}
    assert names_of(dataset) == expected
    assert len(dataset.splits[split].captions) == 2
    assert str(dataset.problems[0]).startswith(problem.partition(":")[0])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("captions.tsv", b"picture\ttext\n", "has the columns picture, text; expected image and"),
        ("captions.tsv", b"", "has the columns none; expected image and caption"),
        ("captions.tsv", b"\xff\xfeimage", "is not valid UTF-8 .*; save it as UTF-8"),
        ("captions.csv", b'image,caption\na.jpg,"never closed\n', "line 2 of .* cannot be read"),
        ("captions.parquet", b"PAR1", "is not a complete Parquet file"),
        ("captions.csv", b"image,caption\n", "has no images at all"),
        ("dev.txt", b"\n", "dev.txt names no image; fill or remove it"),
    ],
)
def test_bad_files_are_explained(folder: Path, name: str, content: bytes, message: str) -> None:
    if name.startswith("captions"):
        (folder / "captions.tsv").unlink()
        if b"\n" in content:
            remove_split_files(folder)
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        open_dataset(folder)


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("facts.csv", b"path,year\n000.png,2020\n", False),
        ("facts.csv", "Datei,Gr\u00f6\u00dfe\n".encode("latin-1"), False),
        ("facts.tsv", b"", False),
        ("facts.parquet", b"half of one", False),
        ("any.csv", b"file,caption\n000.png,a dog\n", True),
        ("any.tsv", b"\nimage\tcaption\n", True),
        ("captions.csv", b"path,year\n", True),
    ],
)
def test_other_tables_are_no_captions(
    name: str, content: bytes, found: bool, tmp_path: Path
) -> None:
    (tmp_path / "more.csv").write_text("path,place\n")
    (tmp_path / name).write_bytes(content)
    assert is_dataset(tmp_path) is found


def test_a_folder_with_two_tables_is_not_guessed(folder: Path) -> None:
    (folder / "captions.tsv").rename(folder / "one.tsv")
    assert names_of(open_dataset(folder)) == NAMES
    shutil.copy(folder / "one.tsv", folder / "two.tsv")
    with pytest.raises(ValueError, match="has 2 tables of captions; give only one of them"):
        open_dataset(folder)
    assert names_of(open_dataset(folder / "two.tsv")) == NAMES


@needs_flickr8k
def test_flickr8k_opens_as_it_lies_there() -> None:
    dataset = open_dataset(FLICKR8K, features=FLICKR8K / "resnet50_pooled.npy")
    sizes = {n: (len(s.image_names), len(s.captions)) for n, s in dataset.splits.items()}
    assert sizes == {"train": (6000, 30000), "dev": (1000, 5000), "test": (1000, 5000)}
    for split in dataset.splits.values():
        assert split.images is not None
        assert min(split.images.load(17).size) in (192, 256)  # of the first packing, and of this
        assert split.features is not None
        assert split.features.shape == (2048,)
