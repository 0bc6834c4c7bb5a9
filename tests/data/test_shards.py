"""Tests of tar shards: their contents and their faults are found and named."""

from __future__ import annotations

import gc
import json
import os
import pickle
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import webdataset
from data.examples import picture, write_table
from data.tars import bomb, picture_bytes, sample, write_shards, write_tar
from PIL import Image

from gradspace.data.open import open_dataset
from gradspace.data.shards.index import LostShard, shard_index
from gradspace.data.shards.patterns import expand_braces, find_shards
from gradspace.data.shards.reading import UnusableSample, decode_picture, parse_captions
from gradspace.data.shards.store import Shards, tar_shards


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it closes no file
def test_shards_that_webdataset_writes(tmp_path: Path) -> None:
    with webdataset.TarWriter(str(tmp_path / "train-0.tar")) as out:
        for number in range(3):
            data = {"__key__": f"a/{number}", "png": picture(number), "txt": f"caption {number}"}
            out.write({**data, "json": {"caption": "not this"}, "cls": 3})
        out.write({"__key__": "a/3", "webp": picture_bytes(3, "WEBP"), "json": {"caption": "last"}})
    train = open_dataset(tmp_path).splits["train"]
    assert train.captions == ["caption 0", "caption 1", "caption 2", "last"]
    assert train.image_names[0] == "train-0.tar/a/0.png"
    assert train.images is not None
    assert train.images.load(1).tobytes() == picture(1).tobytes()
    with webdataset.WebDataset(str(tmp_path / "train-0.tar"), shardshuffle=False) as bare:
        keys = [entry["__key__"] for entry in bare]
    gc.collect()  # or a later test would hear of the file
    names = [name.rpartition(".")[0] for name in train.image_names]
    assert names == [f"train-0.tar/{key}" for key in keys]


@pytest.mark.parametrize(
    ("kind", "text", "captions"),
    [
        ("txt", "a dog\r\n\n a cat \n", ["a dog", "a cat"]),
        ("json", '["a", "b"]', ["a", "b"]),
        ("json", '{"caption": "a", "url": "x"}', ["a"]),
        ("json", '{"captions": ["a", "", "b"]}', ["a", "b"]),
        ("json", '{"sentences": [{"raw": "a", "tokens": ["a"]}, {"raw": "b"}]}', ["a", "b"]),
        ("json", '"alone"', ["alone"]),
    ],
)
def test_captions(kind: str, text: str, captions: list[str]) -> None:
    assert parse_captions(text.encode(), kind) == captions


@pytest.mark.parametrize(
    ("kind", "data", "reason"),
    [
        ("txt", b" \n", "no caption"),
        ("txt", b"\xff", "cannot be read"),
        ("json", b"{", "cannot be read"),
        ("json", b"[" * 100_000, "cannot be read"),
        ("json", b'{"url": 3}', "no caption"),
        ("json", b"[3, null]", "no caption"),
    ],
)
def test_captions_that_are_none(kind: str, data: bytes, reason: str) -> None:
    with pytest.raises(UnusableSample, match=reason):
        parse_captions(data, kind)


def test_ranges_and_globs(tmp_path: Path) -> None:
    assert list(expand_braces("x-{009..011}-{a,b}")) == [
        f"x-{number}-{letter}" for number in ("009", "010", "011") for letter in "ab"
    ]
    write_shards(tmp_path, {f"train-{n:03d}.tar": 1 for n in range(4)})
    assert [p.name for p in find_shards(tmp_path / "train-{001..002}.tar")] == [
        "train-001.tar",
        "train-002.tar",
    ]
    assert len(find_shards(tmp_path / "train-*.tar")) == len(find_shards(tmp_path)) == 4
    with pytest.raises(ValueError, match=r"train-004\.tar does not exist"):
        find_shards(tmp_path / "train-{000..004}.tar")
    with pytest.raises(ValueError, match="ends before it begins"):
        find_shards(tmp_path / "train-{4..1}.tar")
    with pytest.raises(ValueError, match="does not exist: give"):
        open_dataset(tmp_path / "train-9.tar")


def test_splits_by_name_by_option_and_by_share(tmp_path: Path) -> None:
    named = write_shards(tmp_path / "named", {"train-0.tar": 3, "val-0.tar": 2, "test_0.tar": 1})
    sizes = {name: len(split.captions) for name, split in open_dataset(named).splits.items()}
    assert sizes == {"train": 3, "dev": 2, "test": 1}
    plain = write_shards(tmp_path / "plain", {f"{n:05d}.tar": 10 for n in range(3)})
    dataset = open_dataset(plain / "*.tar", dev=str(plain / "00002.tar"))
    assert {n: len(s.captions) for n, s in dataset.splits.items()} == {"train": 20, "dev": 10}
    assert dataset.name == "plain"
    shared = open_dataset(plain)
    assert {n: len(s.captions) for n, s in shared.splits.items()} == {
        "train": 24,
        "dev": 3,
        "test": 3,
    }
    assert "10%" in shared.drawn
    write_shards(named, {"more.tar": 1})
    with pytest.raises(ValueError, match=r"more\.tar .* belongs to no split"):
        open_dataset(named)


def test_shards_with_other_files_beside_them(tmp_path: Path) -> None:
    """As img2dataset leaves them; and a tar beside a table."""
    folder = write_shards(tmp_path / "shards", {"00000.tar": 12})
    columns = {"caption": ["a"], "url": ["https://example.org"], "key": ["0000"]}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "00000.parquet")
    (folder / "00000_stats.json").write_text("{}")
    assert sum(len(split.captions) for split in open_dataset(folder).splits.values()) == 12
    table = write_table(tmp_path / "table")
    write_shards(table, {"images.tar": 1})
    assert open_dataset(table).name == "table"
    assert len(open_dataset(table).splits["train"].captions) == 8


# --- what is wrong with them --------------------------------------------------------------------


def problems(folder: Path) -> list[str]:
    """Items that skip_broken leaves out."""
    return [str(problem) for problem in open_dataset(folder, skip_broken=True).problems]


def test_samples_that_are_none_are_named(tmp_path: Path) -> None:
    members = [
        *sample("good", 0, captions=2),
        *sample("../../etc/up", 1),
        *sample("/root", 2),
        ("alone.jpg", picture_bytes(3)),
        ("words.txt", b"no picture"),
        *sample("good", 4),
        ("empty.jpg", picture_bytes(5)),
        ("empty.txt", b"\n"),
        ("bomb.png", bomb()),
        ("bomb.txt", b"a bomb"),
        ("text.jpg", b"no picture at all"),
        ("text.txt", b"a text"),
        ("._good.jpg", b"of a Mac"),
    ]
    write_tar(tmp_path / "train-0.tar", members)
    with pytest.raises(ValueError, match=r"9 problems, the first is name leads outside"):
        open_dataset(tmp_path)
    found = problems(tmp_path)
    expected = [
        "name leads outside: train-0.tar/'../../etc/up.jpg' (train)",
        "name leads outside: train-0.tar/'../../etc/up.txt' (train)",
        "name leads outside: train-0.tar/'/root.jpg' (train)",
        "name leads outside: train-0.tar/'/root.txt' (train)",
        "duplicate key: train-0.tar/good.jpg (train), the first one is used",
        "duplicate key: train-0.tar/good.txt (train), the first one is used",
        "image without caption: train-0.tar/alone (train)",
        "caption without image: train-0.tar/words (train)",
        "unreadable captions: train-0.tar/empty.jpg (train), its .txt has no caption",
        "broken image: train-0.tar/bomb.png (train)",
        "broken image: train-0.tar/text.jpg (train)",
    ]
    assert len(found) == len(expected)
    assert all(line.startswith(start) for line, start in zip(found, expected, strict=True)), found
    assert open_dataset(tmp_path, skip_broken=True).splits["train"].image_names == [
        "train-0.tar/good.jpg"
    ]


@pytest.mark.parametrize(("lost", "left"), [(0, 6), (1, 5), (600, 5), (1100, 5), (4000, 4)])
def test_a_truncated_shard_keeps_what_is_whole(lost: int, left: int, tmp_path: Path) -> None:
    path = write_shards(tmp_path, {"train-0.tar": 6}) / "train-0.tar"
    start, size = shard_index(path).places[-1, 2:4].tolist()
    path.write_bytes(path.read_bytes()[: start + size - lost])
    index = shard_index(path)
    assert len(index) == left
    assert str(next(iter(index.problems()))).startswith("damaged shard: train-0.tar")
    for number in range(left):
        tar_shards([path]).picture(0, number)
        assert tar_shards([path]).captions(0, number) == [f"caption 0 of picture {number}"]


def test_a_damaged_header_ends_a_shard(tmp_path: Path) -> None:
    path = write_shards(tmp_path, {"train-0.tar": 6}) / "train-0.tar"
    data = bytearray(path.read_bytes())
    at = data.index(b"0003.jpg\0")
    data[at : at + 300] = b"?" * 300
    path.write_bytes(data)
    index = shard_index(path)
    assert index.names == ("0000.jpg", "0001.jpg", "0002.jpg")
    [problem] = index.problems()
    assert f"it is damaged at byte {at:,}" in str(problem)


@pytest.mark.parametrize("data", [b"", b"no tar at all" * 100])
def test_no_tar_at_all(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "train-0.tar").write_bytes(data)
    with pytest.raises(ValueError, match=r"no captions at all|no images at all|damaged shard"):
        open_dataset(tmp_path)


def test_an_index_is_made_once_and_again_when_the_shard_is_another(tmp_path: Path) -> None:
    path = write_shards(tmp_path, {"a.tar": 2}) / "a.tar"
    assert len(shard_index(path)) == 2
    os.utime(path, ns=(1, 1))
    assert len(shard_index(path)) == 2
    data = path.read_bytes()
    path.write_bytes(data[:100] + b"?" + data[101:])
    os.utime(path, ns=(1, 1))
    assert len(shard_index(path)) == 2, "from the cache: size and time are equal"
    os.utime(path, ns=(2, 2))
    assert len(shard_index(path)) == 0


def test_a_shard_that_goes_or_changes_is_one_sentence(tmp_path: Path) -> None:
    folder = write_shards(tmp_path, {"a.tar": 2, "b.tar": 3})
    shards = tar_shards(find_shards(folder))
    assert shards.captions(0, 1) == ["caption 0 of picture 1"]
    write_shards(folder, {"a.tar": 30})
    (folder / "b.tar").unlink()
    with pytest.raises(LostShard, match=r"a\.tar cannot be read|a\.tar has changed"):
        Shards.captions(_fresh(shards), 0, 1)
    with pytest.raises(LostShard, match=r"b\.tar cannot be read: No such file"):
        shards.index(1)


def _fresh(shards: Shards) -> Shards:
    """As another process has it."""
    return pickle.loads(pickle.dumps(shards))  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("error::UserWarning", "default::PIL.Image.DecompressionBombWarning")
def test_pictures_that_are_not_decoded(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    assert decode_picture(picture_bytes(0, "WEBP")).size == (24, 18)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 24 * 18 - 1)
    with pytest.raises(UnusableSample, match="its picture is broken: Image size"):
        decode_picture(picture_bytes(0))
    assert not recwarn
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n%%EndComments\nshowpage\n"
    with pytest.raises(UnusableSample, match="not in a known format"):
        decode_picture(script)


def test_names_of_any_length_and_further_members(tmp_path: Path) -> None:
    key = "deep/" * 40 + "ü" * 60
    extra = [("x.seg.png", b"?"), ("README", b"?"), ("meta.json", json.dumps({"a": 1}).encode())]
    write_tar(tmp_path / "t.tar", [*extra[:2], *sample(key, 7)])
    assert shard_index(tmp_path / "t.tar").names == (f"{key}.jpg",)
