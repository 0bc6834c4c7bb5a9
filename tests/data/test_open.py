from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from data.examples import captions_of, write_karpathy, write_table

from gradspace.data import Dataset, FeatureWriter, open_dataset
from gradspace.data.dataset import make_split
from gradspace.data.readers import READERS, reader


def test_an_unknown_source_lists_what_was_looked_for(tmp_path: Path) -> None:
    known = r"give 'questions', 'scenes', or a path to one of: .*Karpathy's .*; a folder .*_ims"
    with pytest.raises(ValueError, match=rf"nowhere does not exist: {known}"):
        open_dataset("nowhere")
    for source in (tmp_path, tmp_path / "file.txt"):
        (tmp_path / "file.txt").touch()
        with pytest.raises(ValueError, match=rf"{source.name} has no known layout: {known}"):
            open_dataset(source)


def test_a_table_without_a_line_has_no_captions(tmp_path: Path) -> None:
    write_table(tmp_path)
    (tmp_path / "captions.tsv").write_text("image\tcaption\n")
    with pytest.raises(ValueError, match="has no captions at all"):
        open_dataset(tmp_path)


def test_two_layouts_in_one_folder_are_not_guessed(tmp_path: Path) -> None:
    write_table(tmp_path)
    write_karpathy(tmp_path / "dataset_x.json", [("a.jpg", "train", captions_of("a.jpg"))])
    with pytest.raises(ValueError, match="looks like both karpathy and table: give the file"):
        open_dataset(tmp_path)
    assert len(open_dataset(tmp_path / "captions.tsv").splits) == 3
    assert len(open_dataset(tmp_path / "dataset_x.json").splits) == 1


def test_a_new_layout_is_one_decorated_function(tmp_path: Path) -> None:
    try:

        @reader("lines", recognises=lambda path: path.suffix == ".lines", looks_for="a .lines file")
        def open_lines(path: Path, images: Path | None, *, split: str = "train") -> Dataset:
            """One image a line."""
            described = [(line, [line]) for line in path.read_text().splitlines()]
            return Dataset("lines", {split: make_split(split, described)})

        (tmp_path / "x.lines").write_text("a\nb")
        np.save(tmp_path / "x.npy", np.zeros((2, 4), np.float32))
        dataset = open_dataset(tmp_path / "x.lines", features=tmp_path / "x.npy", split="test")
        assert dataset.splits["test"].image_names == ["a", "b"]
        with pytest.raises(ValueError, match="lines has no parameter 'size'; it takes split"):
            open_dataset(tmp_path / "x.lines", size=3)
        with pytest.raises(ValueError, match="'lines' is already registered"):
            reader("lines")(open_lines)
    finally:
        del READERS["lines"]


@pytest.mark.parametrize("name", READERS)
def test_every_reader_tells_what_it_reads(name: str) -> None:
    assert READERS[name].summary
    assert bool(READERS[name].recognises) == bool(READERS[name].looks_for)


def test_a_file_of_features_follows_the_lists(tmp_path: Path) -> None:
    folder = write_table(tmp_path)
    np.save(tmp_path / "f.npy", np.arange(6, dtype=np.float16)[:, None])
    dataset = open_dataset(folder, features=tmp_path / "f.npy")
    found = {n: s.features.load(0).tolist() for n, s in dataset.splits.items() if s.features}
    assert found == {"train": [0.0], "dev": [4.0], "test": [5.0]}
    with pytest.raises(ValueError, match=r"no.npy does not exist: expected features"):
        open_dataset(folder, features=tmp_path / "no.npy")


def test_left_out_images_take_their_features_with_them(tmp_path: Path) -> None:
    folder = write_table(tmp_path)
    np.save(tmp_path / "f.npy", np.arange(6, dtype=np.float16)[:, None])
    (folder / "images" / "b.png").unlink()
    dataset = open_dataset(folder, features=tmp_path / "f.npy", skip_broken=True)
    train = dataset.splits["train"]
    assert train.image_names == ["a.jpg", "c.avif", "d.jpg"]
    assert train.image_of_caption.tolist() == [0, 0, 1, 1, 2, 2]
    assert train.features is not None
    assert train.images is not None
    assert train.features.load(1).tolist() == [2.0]
    assert len(train.features) == 3
    assert len(train.images) == 3
    assert train.images.load(2).size == (48, 36)


def test_a_folder_of_features_is_that_of_the_items_left(tmp_path: Path) -> None:
    folder = write_table(tmp_path / "small")
    (folder / "images" / "b.png").write_bytes(b"broken")
    dataset = open_dataset(folder, skip_broken=True)
    for split in dataset.splits.values():
        with FeatureWriter(tmp_path / "f", split, (2,), backbone="b") as writer:
            writer.append(np.arange(2 * len(split.image_names)).reshape(-1, 2))
    (folder / "images" / "b.png").unlink()
    again = open_dataset(folder, features=tmp_path / "f", skip_broken=True)
    features = again.splits["train"].features
    assert features is not None
    assert features.load(2).tolist() == [4.0, 5.0]


def test_truncated_images_fail_when_loaded_or_are_left_out(tmp_path: Path) -> None:
    folder = write_table(tmp_path)
    path = folder / "images" / "d.jpg"
    path.write_bytes(path.read_bytes()[:-200])
    images = open_dataset(folder).splits["train"].images
    assert images is not None
    with pytest.raises(ValueError, match=r"image 'd.jpg' in .* is broken: .*truncated"):
        images.load(3)
    calls: list[tuple[int, int]] = []
    dataset = open_dataset(
        folder, skip_broken=True, progress=lambda done, total: calls.append((done, total))
    )
    assert dataset.splits["train"].image_names == ["a.jpg", "b.png", "c.avif"]
    assert [problem.kind for problem in dataset.problems] == ["broken image"]
    assert calls == [(done, 6) for done in range(1, 7)]


def test_an_empty_split_is_not_left(tmp_path: Path) -> None:
    folder = write_table(tmp_path)
    (folder / "images" / "e.jpg").unlink()
    with pytest.raises(ValueError, match=r"every item of split 'dev' of .* has problems"):
        open_dataset(folder, skip_broken=True)
