from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from commands import here, refused
from data.examples import small_split, write_images, write_table
from data.test_copied_shards import rows

from gradspace.data import Dataset, check_dataset, open_dataset
from gradspace.data.batches import image_batches


def damage(folder: Path) -> Path:
    """One problem of every kind."""
    table = folder / "captions.tsv"
    table.write_text(
        table.read_text().replace("caption 1 of e.jpg", " ")
        + "nobody.jpg\ttext\nmalformed\nr.jpg\ttext\np.jpg\ttext\n"
    )
    write_images(folder / "images", ["g.jpg", "p.jpg"])
    (folder / "images" / "a.jpg").write_bytes((folder / "images" / "a.jpg").read_bytes()[:-150])
    train = "a.jpg b.png c.avif d.jpg b.png g.jpg e.jpg r.jpg"
    (folder / "train.txt").write_text(train.replace(" ", "\n"))
    return folder


def test_everything_wrong_is_listed(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    report = check_dataset(damage(write_table(tmp_path)), progress=lambda *at: calls.append(at))
    assert [(problem.kind, problem.item) for problem in report.problems] == [
        ("malformed row", "line 15 of captions.tsv"),
        ("caption without image", "nobody.jpg"),
        ("duplicate image", "b.png"),
        ("image without caption", "g.jpg"),
        ("image in two splits", "e.jpg"),
        ("missing image", "r.jpg"),
        ("empty caption", "caption 2 of e.jpg"),
        ("empty caption", "caption 2 of e.jpg"),
        ("broken image", "a.jpg"),
    ]
    train = report.splits[0]
    assert (train.name, train.num_images, train.num_captions) == ("train", 3, 6)
    assert report.num_decoded == 6
    assert calls[-1] == (6, 6)
    as_dict = json.loads(json.dumps(report.to_dict()))
    assert len(as_dict["problems"]) == 9
    assert as_dict["splits"][0]["captions_per_image"] == {"least": 2, "mean": 2.0, "most": 2}
    text = str(report)
    assert "9 problems (1 x malformed row, 1 x caption without image, " in text
    assert "missing image: r.jpg (train), not in " in text


def test_a_sound_dataset_is_described(tmp_path: Path) -> None:
    folder = write_table(tmp_path)
    np.save(tmp_path / "f.npy", np.zeros((6, 5), np.float16))
    report = check_dataset(folder, features=tmp_path / "f.npy")
    assert report.problems == ()
    assert (report.vocabulary_size, report.num_words, report.num_decoded) == (5, 11, 6)
    assert report.splits[1].feature_shape == (5,)
    text = str(report)
    assert "train: 4 images, 8 captions, features [5]" in text
    assert "captions per image: 2\n" in text
    assert "words per caption: 5\n" in text
    assert "no problems" in text
    assert check_dataset(open_dataset(folder)).splits[2].num_images == 1


def test_the_text_names_ten_problems(tmp_path: Path) -> None:
    split = small_split(30, 1)
    split = replace(split, captions=["" if i % 2 else "a" for i in range(30)])
    text = str(check_dataset(Dataset("x", {"train": split})))
    assert "30 problems (15 x image without caption, 15 x empty caption)" in text
    assert text.count("image without caption: ") == 10
    assert "and 20 more" in text


def test_a_dataset_made_by_hand_is_checked() -> None:
    split = replace(small_split(3, 1), name="dev", image_of_caption=np.array([0, 1, 7]))
    kinds = [problem.kind for problem in check_dataset(Dataset("x", {"dev": split})).problems]
    assert kinds == ["image without caption", "caption without image"]


def test_features_that_are_not_numbers_are_found(tmp_path: Path) -> None:
    folder = write_table(tmp_path)
    rows = np.zeros((6, 5), np.float16)
    rows[1, 3], rows[5, 0] = np.nan, np.inf
    np.save(tmp_path / "f.npy", rows)
    train = open_dataset(folder, features=tmp_path / "f.npy").splits["train"]
    with pytest.raises(ValueError, match=r"features of 'b\.png' in split 'train' are NaN or inf"):
        list(image_batches(train, batch_size=4))
    report = check_dataset(folder, features=tmp_path / "f.npy")
    assert str(report.problems[0]) == "broken features: b.png (train), NaN or infinite"
    assert [split.num_captions for split in report.splits] == [6, 2, 0]
    with pytest.raises(ValueError, match="every item of split 'test'"):
        open_dataset(folder, features=tmp_path / "f.npy", skip_broken=True)
    np.save(tmp_path / "f.npy", np.nan_to_num(rows, nan=np.nan, posinf=0))
    dataset = open_dataset(folder, features=tmp_path / "f.npy", skip_broken=True)
    assert dataset.splits["train"].image_names == ["a.jpg", "c.avif", "d.jpg"]


def test_what_was_left_out_is_still_listed(tmp_path: Path) -> None:
    dataset = open_dataset(damage(write_table(tmp_path)), skip_broken=True)
    assert check_dataset(dataset).problems == dataset.problems
    assert len(dataset.problems) == 9


@pytest.mark.slow
def test_options_of_the_dataset(tmp_path: Path) -> None:
    values = rows(range(20))
    columns = {"photo": values["image"], "words": values["caption"]}
    file = tmp_path / "mine.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
    named = ("--set", "data.image=photo", "--set", "data.caption=words")
    assert "name it with data.image" in refused("data", "check", file)
    done = here("data", "check", file, *named, "--set", "data.dev_share=0.5")
    assert done.returncode == 0
    assert "dev: 10 images, 10 captions" in done.stdout
    stream = ("--set", "data.stream=true", "--set", "data.epoch_samples=8")
    assert "leave data.stream out" in refused("data", "check", file, *named, *stream)
    assert "data.KEY=VALUE here, got a key of 'model'" in refused(
        "data", "check", file, "--set", "model.name=scan"
    )
