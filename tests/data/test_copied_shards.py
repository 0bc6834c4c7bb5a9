"""Parquet files and Hugging Face datasets as streams: copied piece by piece, in one order."""

from __future__ import annotations

import errno
import gc
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from data.tars import picture_bytes
from data.test_stream import assert_equal, encode, left_out, open_stream, pixels, read, seeds

from gradspace.data.cache import NoRoom, cache_folder
from gradspace.data.inputs import PictureReading
from gradspace.data.open import open_dataset
from gradspace.data.shards import copied, iterable
from gradspace.data.shards.copied import CopiedShard
from gradspace.data.shards.index import LostShard
from gradspace.data.shards.reading import decode_picture
from gradspace.data.shards.stream import ShardStream, stream_batches

pytestmark = pytest.mark.slow  # the library takes seconds to import

TOTAL = 24
PICTURES = [picture_bytes(seed) for seed in range(TOTAL)]


@pytest.fixture(autouse=True)
def _quiet_and_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("GRADSPACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf-cache")
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def rows(numbers: range) -> dict[str, list[Any]]:
    return {
        "image": [{"bytes": PICTURES[n], "path": None} for n in numbers],
        "caption": [f"caption 0 of picture {n}" for n in numbers],
        "cocoid": [n // 2 for n in numbers],
    }


def write_parquet(folder: Path, per_file: int = 3) -> Path:
    folder.mkdir()
    for number, start in enumerate(range(0, TOTAL, per_file)):
        table = pyarrow.table(rows(range(start, start + per_file)))
        pyarrow.parquet.write_table(table, folder / f"train-{number}.parquet", row_group_size=2)
    return folder


def write_saved(folder: Path) -> Path:
    made = datasets.Dataset.from_dict(rows(range(TOTAL)))
    made.cast_column("image", datasets.Image()).save_to_disk(folder)
    return folder


def write_folder(folder: Path) -> Path:
    """As `load_dataset` understands it: pictures in files, and captions in a table."""
    (folder / "train").mkdir(parents=True)
    lines = ["file_name,text"]
    for number, data in enumerate(PICTURES):
        (folder / "train" / f"{number:02}.jpg").write_bytes(data)
        lines.append(f"{number:02}.jpg,caption 0 of picture {number}")
    (folder / "train" / "metadata.csv").write_text("\n".join(lines))
    return folder


def opened(folder: Path, form: str = "parquet", **options: Any) -> ShardStream:
    source = f"hf:{folder}" if form.startswith("hf") else folder
    return open_stream(source, **{"epoch_samples": TOTAL, **options})


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it closes no file
@pytest.mark.parametrize("form", ["parquet", "saved", "hf parquet", "hf folder"])
def test_every_row_once_with_its_own_caption(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iterable, "ROWS_PER_SHARD", 5)
    write = {"saved": write_saved, "hf folder": write_folder}.get(form, write_parquet)
    folder = write(tmp_path / "mine")
    batches = read(opened(folder, form))
    assert sorted(seeds(batches)) == list(range(TOTAL)) != seeds(batches)
    assert len(opened(folder, form).shards) == {"saved": 5, "hf folder": 1}.get(form, 8)
    for row, seed in zip(torch.cat([b.images for b in batches]), seeds(batches), strict=True):
        mean = pixels(decode_picture(PICTURES[seed]), np.random.default_rng(0))[:3]
        assert torch.equal(row[:3], mean)
    for start in (1, 2):
        assert_equal(read(opened(folder, form), start_batch=start), batches[start:])
    assert_equal(read(opened(folder, form), num_workers=2), batches)
    gc.collect()  # or a later test would hear of the file


def test_a_copy_that_another_process_removes_at_once_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = opened(write_parquet(tmp_path / "mine")).shards.sources[0]
    assert isinstance(source, CopiedShard)
    removed = iter([True, True, False])

    def remove(shard: CopiedShard) -> None:
        if next(removed):
            shutil.rmtree(shard._place)

    monkeypatch.setattr(CopiedShard, "_remove_oldest", remove)
    shutil.rmtree(source.folder, ignore_errors=True)
    assert len(source.index().names) > 0
    assert not next(removed, False)


def test_the_copy_made_last_is_not_the_one_to_go(tmp_path: Path) -> None:
    """Even if others were used while it was made, and there is room for one only."""
    sources = opened(write_parquet(tmp_path / "mine")).shards.sources[:2]
    first, second = (replace(one, most=1) for one in sources if isinstance(one, CopiedShard))
    first.index()
    os.utime(first._place, (2e9, 2e9))
    assert len(second.index().names) > 0
    assert first.is_gone()
    assert not second.is_gone()


def removed_but_open() -> int:
    """Number of copies that take up room although they were removed."""
    files = [os.readlink(place) for place in Path("/proc/self/fd").iterdir() if place.is_symlink()]
    return sum("/copies/" in file and file.endswith("(deleted)") for file in files)


def test_few_copies_exist_and_a_removed_one_is_made_again(tmp_path: Path) -> None:
    folder = write_parquet(tmp_path / "mine")
    [*whole] = read(opened(folder, shards_at_once=8), epoch=1)
    expected = read(opened(folder, shards_at_once=1, buffer=3), batch_size=3, epoch=2)
    copies = tmp_path / "cache" / "copies"
    shutil.rmtree(copies)
    batches = stream_batches(
        opened(folder, shards_at_once=1, buffer=3),
        encode,
        batch_size=3,
        seed=3,
        epoch=2,
        reading=PictureReading(pixels),
    )
    found = []
    for number, batch in enumerate(batches):
        found.append(batch)
        assert 1 <= len([*copies.glob("*/[!.]*")]) <= 3
        assert removed_but_open() <= 2
        if number == 4:
            shutil.rmtree(copies)
    assert_equal(found, expected)
    assert len(whole) == 3
    assert len([*copies.glob("*/.*")]) <= 2 * 3, "locks of copies that are gone"


def test_a_damaged_copy_is_made_again(tmp_path: Path) -> None:
    folder = write_parquet(tmp_path / "mine")
    expected = read(opened(folder))
    copies = tmp_path / "cache" / "copies"
    for number, copy in enumerate(copies.glob("*/*/*")):
        copy.write_bytes(copy.read_bytes()[: 10 * (number % 2)])
    begun = next(copies.glob("*/[!.]*"))
    begun.with_name(f".{begun.name}.killed").mkdir()
    assert_equal(read(opened(folder)), expected)
    assert not [*copies.glob("*/*.killed")]


def test_rows_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "secret.jpg").write_bytes(PICTURES[0])
    values = rows(range(8))
    values["image"][1] = {"bytes": None, "path": None}
    values["image"][2] = {"bytes": None, "path": str(tmp_path / "secret.jpg")}
    values["image"][3] = {"bytes": b"no picture", "path": None}
    values["image"][6] = {"bytes": None, "path": f"file://{tmp_path}/secret.jpg::{tmp_path}/mine/x"}
    values["caption"][4] = " "
    values["caption"][5] = None
    datasets.Dataset.from_dict(values).save_to_disk(tmp_path / "mine")
    named = sorted(line for lines in left_out(opened(tmp_path / "mine")) for line in lines)
    assert [*dict.fromkeys(named)] == [
        "caption without image: train-00000-of-00001/1.jpg, there is no picture in its row",
        f"caption without image: train-00000-of-00001/2.jpg, its file leads out of {tmp_path}/mine",
        f"caption without image: train-00000-of-00001/6.jpg, its file leads out of {tmp_path}/mine",
        "image without caption: train-00000-of-00001/5.jpg",
        "train-00000-of-00001/3.jpg: its picture is not in a known format",
        "train-00000-of-00001/4.jpg: its .json has no caption",
    ]


@pytest.mark.parametrize("options", [{"id_column": "cocoid"}, {"by_content": True}])
def test_rows_of_one_image_have_one_id(options: dict[str, Any], tmp_path: Path) -> None:
    values = rows(range(TOTAL))
    values["image"] = [values["image"][n - n % 2] for n in range(TOTAL)]
    (tmp_path / "mine").mkdir()
    pyarrow.parquet.write_table(pyarrow.table(values), tmp_path / "mine/train.parquet")
    stream = opened(tmp_path / "mine", **options)
    batches = read(stream)
    ids = dict(zip(seeds(batches), torch.cat([b.image_ids for b in batches]).tolist(), strict=True))
    assert len(set(ids.values())) == TOTAL // 2
    assert all(ids[seed] == ids[seed - seed % 2] for seed in ids)
    with pytest.raises(ValueError, match=r"captions_per_image is 2: .* several rows .* needs 1"):
        read(stream, captions_per_image=2)
    assert len({*torch.cat([b.image_ids for b in read(opened(tmp_path / "mine"))]).tolist()}) == 24


def test_rows_without_an_id_are_images_of_their_own(tmp_path: Path) -> None:
    values = {**rows(range(TOTAL)), "cocoid": [None, *range(TOTAL - 2), None]}
    (tmp_path / "mine").mkdir()
    pyarrow.parquet.write_table(pyarrow.table(values), tmp_path / "mine/train.parquet")
    batches = read(opened(tmp_path / "mine", id_column="cocoid"))
    assert len({*torch.cat([batch.image_ids for batch in batches]).tolist()}) == TOTAL


def test_dev_of_a_streamed_dataset_is_ordinary(tmp_path: Path) -> None:
    folder = write_parquet(tmp_path / "mine")
    (folder / "train-7.parquet").rename(folder / "validation-0.parquet")
    for source in (folder, f"hf:{folder}"):
        dataset = open_dataset(source, stream=True, epoch_samples=8, id_column="cocoid")
        assert dataset.description == "mine: train a stream of 7 shards, dev 2 images / 3 captions"
        assert dataset.splits["dev"].images is not None
        assert dataset.splits["dev"].images.load(0).size == (24, 18)


# --- what goes wrong ----------------------------------------------------------------------------


def test_a_file_that_goes_or_changes_is_one_sentence(tmp_path: Path) -> None:
    folder = write_parquet(tmp_path / "mine", per_file=12)
    stream = opened(folder)
    (folder / "train-1.parquet").unlink()
    with pytest.raises(LostShard, match=r"train-1\.parquet cannot be read: No such file"):
        read(stream)
    shutil.copy(folder / "train-0.parquet", folder / "train-1.parquet")
    with pytest.raises(LostShard, match=r"train-1\.parquet has changed while it was in use"):
        read(stream)
    (folder / "train-1.parquet").write_bytes(b"PAR1")
    with pytest.raises(
        LostShard, match=r"the shard .*train-1\.parquet is not a complete Parquet file: "
    ):
        read(opened(folder))


def test_another_content_under_the_same_name_is_noticed(tmp_path: Path) -> None:
    folder = write_parquet(tmp_path / "mine", per_file=12)
    stream = opened(folder)
    read(stream)
    (folder / "train-0.parquet").unlink()
    values = {**rows(range(12)), "caption": ["another caption 7"] * 12}
    pyarrow.parquet.write_table(pyarrow.table(values), folder / "train-0.parquet")
    changed = opened(folder)
    changed.shards.contents |= stream.shards.contents
    with pytest.raises(LostShard, match=r"train-0\.parquet has changed while it was in use"):
        read(changed)


def test_no_room_for_copies_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    stream = opened(write_parquet(tmp_path / "mine"))
    monkeypatch.setattr(copied, "save_index", full)
    with pytest.raises(NoRoom, match=r"the cache in .*: No space left .*; make room"):
        read(stream)
    assert isinstance(stream.shards.sources[0], CopiedShard)
    assert not [*cache_folder().glob("copies/*/[!.]*")]
    monkeypatch.undo()
    assert sorted(seeds(read(stream))) == list(range(TOTAL))
