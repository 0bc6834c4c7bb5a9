"""A stream hands out every sample once a pass, in one order, from any point on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data.examples import picture
from data.tars import bomb, picture_bytes, sample, write_shards, write_tar
from PIL import Image
from torch import Tensor

from gradspace.data.batches import Batch
from gradspace.data.inputs import FEATURES, PictureReading
from gradspace.data.open import open_dataset
from gradspace.data.shards import words
from gradspace.data.shards.index import LostShard
from gradspace.data.shards.order import Bookmark
from gradspace.data.shards.stream import ShardStream, stream_batches

SIZES = {"a.tar": 7, "b.tar": 12, "c.tar": 1, "d.tar": 20, "e.tar": 10}
TOTAL = 50


def pixels(image: Image.Image, rng: np.random.Generator) -> Tensor:
    """The mean color, and a number by lot."""
    mean = np.asarray(image, np.float32).mean((0, 1))
    return torch.from_numpy(np.concatenate([mean, rng.random(1, np.float32)])).view(4, 1, 1)


def encode(captions: Sequence[str]) -> tuple[Tensor, Tensor]:
    """The numbers that are in captions."""
    numbers = [[int(word) for word in caption.split() if word.isdigit()] for caption in captions]
    return torch.tensor(numbers), torch.full((len(captions),), 2)


def open_stream(folder: Path | str, **options: Any) -> ShardStream:
    given = {"epoch_samples": 40, "buffer": 8, "shards_at_once": 2, **options}
    stream = open_dataset(folder, stream=True, **given).stream
    assert stream is not None
    return stream


def read(stream: ShardStream, **options: Any) -> list[Batch]:
    given = {"batch_size": 8, "seed": 3, "epoch": 0, "reading": PictureReading(pixels), **options}
    return list(stream_batches(stream, encode, **given))


def seeds(batches: Sequence[Batch]) -> list[int]:
    """The number of each picture, which its caption says."""
    return [int(number) for batch in batches for number in batch.tokens[:, -1]]


def tensors(batch: Batch) -> list[Tensor]:
    return list(vars(batch).values())


def assert_equal(a: Sequence[Batch], b: Sequence[Batch]) -> None:
    assert len(a) == len(b)
    for one, other in zip(a, b, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(tensors(one), tensors(other), strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"), SIZES, captions=3)


def test_every_sample_comes_once_before_any_comes_again(folder: Path) -> None:
    stream = open_stream(folder, epoch_samples=48)  # two short of a pass
    epochs = [seeds(read(stream, epoch=epoch)) for epoch in range(26)]
    samples = [sample for epoch in epochs for sample in epoch]
    passes = [samples[start : start + TOTAL] for start in range(0, len(samples), TOTAL)]
    for one in passes[:-1]:
        assert sorted(one) == list(range(TOTAL))
    assert all(a != b for a, b in pairwise(passes))


def test_pictures_are_those_of_the_captions(folder: Path) -> None:
    for batch in read(open_stream(folder)):
        assert torch.equal(batch.image_ids, batch.text_ids)
        for row, seed in zip(batch.images, batch.tokens[:, -1].tolist(), strict=True):
            expected = np.asarray(picture(seed, (24, 18)), np.float32).mean((0, 1))
            assert np.allclose(row[:3].flatten(), expected, atol=4)


def test_shuffled_within_a_buffer_of_shards_side_by_side(folder: Path) -> None:
    first = dict(zip(SIZES, np.cumsum([0, *SIZES.values()]), strict=False))
    shard_of = [name for name, size in SIZES.items() for _ in range(size)]
    found = seeds(read(open_stream(folder, epoch_samples=TOTAL, buffer=8), batch_size=1))
    order = list(dict.fromkeys(shard_of[seed] for seed in found))
    groups = [set(order[:2]), set(order[2:4]), set(order[4:])]
    start = 0
    for group in groups:
        size = sum(SIZES[name] for name in group)
        mine, start = found[start : start + size], start + size
        assert {shard_of[seed] for seed in mine} == group
        for name in group:  # within a shard nothing is further from its place than a buffer
            places = [(seed - first[name]) / SIZES[name] for seed in mine if shard_of[seed] == name]
            assert np.abs(np.array(places) - np.linspace(0, 1, len(places))).max() < 3 * 8 / size
    assert found != sorted(found)


@pytest.mark.parametrize("start", range(6))
def test_from_any_batch_on(start: int, folder: Path) -> None:
    """In a new process, which knows a bookmark at most."""
    whole = open_stream(folder)
    for epoch in (0, 3):
        batches = read(whole, epoch=epoch)
        assert_equal(read(open_stream(folder), epoch=epoch, start_batch=start), batches[start:])
        marked = open_stream(folder)
        marked.marks[:] = [whole.bookmark(8, epoch, start)]
        assert_equal(read(marked, epoch=epoch, start_batch=start), batches[start:])
    assert whole.bookmark(8, 3, start) > Bookmark(1)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_make_no_difference(num_workers: int, folder: Path) -> None:
    assert_equal(read(open_stream(folder), num_workers=num_workers), read(open_stream(folder)))


def test_processes_have_parts_of_the_same_batches(folder: Path) -> None:
    whole = read(open_stream(folder))
    for size in (2, 3, 8):
        parts = [read(open_stream(folder), rank=rank, world_size=size) for rank in range(size)]
        for batch, *shares in zip(whole, *parts, strict=True):
            for name, value in vars(batch).items():
                assert torch.equal(torch.cat([getattr(share, name) for share in shares]), value)
    with pytest.raises(ValueError, match="at least the number of processes, 9"):
        read(open_stream(folder), rank=0, world_size=9)


def test_captions_by_lot_or_all_of_them(folder: Path) -> None:
    taken = Counter(int(n) for batch in read(open_stream(folder)) for n in batch.tokens[:, 0])
    assert set(taken) == {0, 1, 2}
    for number in (2, "all"):
        [batch, *_] = read(open_stream(folder), captions_per_image=number)
        each = 3 if number == "all" else 2
        assert batch.text_ids.tolist() == batch.image_ids.repeat_interleave(each).tolist()
        pairs = batch.tokens.view(8, each, 2)
        assert (pairs[:, 1:, 0] > pairs[:, :-1, 0]).all(), "different ones, in their order"
        assert (pairs[:, :, 1] == pairs[:, :1, 1]).all()


# --- what cannot be used ------------------------------------------------------------------------


def write_faulty(folder: Path) -> Path:
    write_shards(folder, {"a.tar": 20})
    members = [member for number in range(20) for member in sample(f"{number}", 20 + number)]
    members[6] = ("3.jpg", b"no picture")
    members[9] = ("4.txt", b" \n")
    members[14] = ("7.png", bomb())
    members += [*sample("../up", 90), ("alone.jpg", picture_bytes(91)), *sample("5", 92)]
    write_tar(folder / "b.tar", members)
    return folder


def left_out(stream: ShardStream, **options: Any) -> list[list[str]]:
    given = {"batch_size": 8, "seed": 3, "epoch": 0, "reading": PictureReading(pixels), **options}
    batches = stream_batches(stream, encode, **given)
    found = []
    for batch in batches:
        assert len(batch.images) == len(batch.tokens) == 8 // options.get("world_size", 1)
        found.append(list(batches.left_out))
    return found


def test_bad_samples_are_named_once_and_others_take_their_place(tmp_path: Path) -> None:
    folder = write_faulty(tmp_path)
    found = left_out(open_stream(folder))
    named = sorted(line for lines in found for line in lines)
    expected = [
        "b.tar/3.jpg: its picture is not in a known format",
        "b.tar/4.jpg: its .txt has no caption",
        "b.tar/7.png: its picture is broken",
        "duplicate key: b.tar/5.jpg, the first one is used",
        "duplicate key: b.tar/5.txt, the first one is used",
        "image without caption: b.tar/alone",
        "name leads outside: b.tar/'../up.jpg', nothing is read under such a name",
        "name leads outside: b.tar/'../up.txt', nothing is read under such a name",
    ]
    assert len(named) == len(expected)
    assert all(line.startswith(start) for line, start in zip(named, expected, strict=True)), named
    assert {*range(20, 40)} - {23, 24, 27} <= {*seeds(read(open_stream(folder)))} <= {*range(40)}
    assert left_out(open_stream(folder), num_workers=2) == found
    for start in range(5):
        assert left_out(open_stream(folder), start_batch=start) == found[start:]
    parts = [left_out(open_stream(folder), rank=rank, world_size=2) for rank in (0, 1)]
    assert [a + b for a, b in zip(*parts, strict=True)] == found


def test_shards_without_anything_to_use_are_an_error(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [("0.jpg", b"?")])
    with pytest.raises(ValueError, match=r"no shard has a picture with a caption: image without"):
        read(open_stream(tmp_path))
    write_tar(tmp_path / "a.tar", [("0.jpg", b"?"), ("0.txt", b"a")])
    with pytest.raises(ValueError, match=r"8 samples drawn .* the last is a\.tar/0\.jpg"):
        read(open_stream(tmp_path))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_shard_that_disappears_is_one_sentence(num_workers: int, tmp_path: Path) -> None:
    folder = write_shards(tmp_path, {f"{number}.tar": 3 for number in range(40)})
    stream = open_stream(folder, shards_at_once=1, epoch_samples=120)
    batches = stream_batches(
        stream,
        encode,
        batch_size=8,
        seed=3,
        epoch=0,
        reading=PictureReading(pixels),
        num_workers=num_workers,
    )
    left = iter(batches)
    assert len(next(left).images) == 8
    for shard in tmp_path.iterdir():
        shard.unlink()
    with pytest.raises(LostShard, match=r"\.tar cannot be read: No such file"):
        list(left)


def test_what_a_stream_cannot_do_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"needs data\.epoch_samples"):
        open_dataset(folder, stream=True)
    with pytest.raises(ValueError, match="an epoch needs at least one batch"):
        read(open_stream(folder), batch_size=41)
    with pytest.raises(ValueError, match="a stream has pictures, and the model reads features"):
        read(open_stream(folder), reading=FEATURES)
    dataset = open_dataset(folder, stream=True, epoch_samples=40)
    assert dataset.description == f"{folder.name}: train a stream of 5 shards"
    with pytest.raises(ValueError, match=r"leave data\.stream out"):
        dataset.split("train")


def test_dev_and_test_of_a_stream_are_ordinary(folder: Path) -> None:
    dataset = open_dataset(folder, stream=True, epoch_samples=40, dev=str(folder / "e.tar"))
    assert dataset.description.endswith("train a stream of 4 shards, dev 10 images / 30 captions")


# --- words --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_vocabulary_is_that_of_a_bounded_part_and_found_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_shards(tmp_path, SIZES)
    told: list[tuple[int, int]] = []

    def vocabulary(**options: Any) -> set[str]:
        found = words.stream_vocabulary(
            open_stream(folder, **options),
            punctuation=False,
            mask=False,
            progress=lambda done, total: told.append((done, total)),
        )
        return {*found.words[4:]}

    assert vocabulary() == {"caption", "of", "picture", "0"}
    assert told[-1] == (1000, 1000)
    assert told == sorted(told)
    assert vocabulary(vocabulary_samples=3) == set(), "of words seen four times"
    monkeypatch.setattr(words, "_captions", None)
    assert vocabulary() == {"caption", "of", "picture", "0"}
