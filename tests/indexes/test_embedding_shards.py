"""Shards of embeddings: filled by several processes, indexed by any engine, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import here, refused
from indexes import hang
from indexes.made_photos import write_photo, write_photos
from indexes.servers import postgres_url  # noqa: F401
from models.tiny_dual import clip
from small_runs import train_small

from gradspace import files
from gradspace.indexes import claims, fill, shards
from gradspace.indexes.claims import claimed
from gradspace.indexes.fill import Filled, embed_shards
from gradspace.indexes.make import index
from gradspace.indexes.shards import ShardPlan, open_shard, read_plan
from gradspace.runs import represent
from gradspace.scores.represented import load_embeddings

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


# --- several processes --------------------------------------------------------------------------


def start(script: str | Path, *arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, *str(script).split(), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_processes_fill_a_folder_together_and_one_is_killed(tmp_path: Path) -> None:
    data = {"num_test": 520}
    run = train_small(tmp_path / "run", data=data, training={"epochs": 1})
    out = tmp_path / "embedded"
    command = ("embed", run.folder, "--shards", "6", "--num-workers", "0", "--out", out)
    lost = start(hang.__file__, *command)
    while not out.with_suffix(".hangs").exists():
        assert lost.poll() is None, lost.communicate()
        time.sleep(0.05)
    others = [start("-m gradspace", *command) for _ in range(2)]
    while not list(out.glob("shard-*")):
        assert all(other.poll() is None for other in others)
        time.sleep(0.05)
    lost.kill()
    lost.communicate()
    said = []
    for other in others:
        output, errors = other.communicate(timeout=120)
        assert (other.returncode, errors) == (0, "")
        said.append(output)
    filled = [int(line.split()[1]) for line in said]
    assert sum(filled) == 6, "each shard once"
    assert all(line.endswith("is complete: 520 images and 2,600 captions\n") for line in said)
    assert {path.name for path in out.iterdir()} == {
        "plan.json", "manifest.json", *(f"shard-{n:05}-of-00006.arrow" for n in range(6))
    }  # fmt: skip

    one = tmp_path / "one.safetensors"
    assert here("embed", run.folder, "--out", one).returncode == 0
    expected, plan = load_embeddings(one), read_plan(out)
    opened = [open_shard(path, plan) for path in plan.shards(out)]
    for kind, vectors in (("image", expected.images), ("caption", expected.texts)):
        rows = [np.array(shard.table["kind"].to_pylist()) == kind for shard in opened]
        found = [shard.vectors[row] for shard, row in zip(opened, rows, strict=True)]
        assert np.array_equal(np.concatenate(found), vectors.numpy())
    again = here("embed", run.folder, "--out", out)
    assert again.stdout.startswith("filled 0 of 6 shards")


# --- claims -------------------------------------------------------------------------------------


def write_claim(path: Path, owner: str, age: float) -> Path:
    claim = path.with_name(f".{path.name}.claim")
    claim.write_text(owner)
    then = time.time() - age
    os.utime(claim, (then, then))
    return claim


def dead_process() -> int:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


@pytest.mark.parametrize(
    ("of", "age", "taken"),
    [
        ("this process", 1000.0, True),
        ("this process", 0.0, False),
        ("a dead process", 0.0, True),
        ("another machine", 50.0, False),
        ("another machine", 70.0, True),
        ("nobody yet", 0.0, False),
        ("nobody yet", 70.0, True),
    ],
)
def test_when_a_claim_is_taken_over(of: str, age: float, taken: bool, tmp_path: Path) -> None:
    path = tmp_path / "shard"
    owners = {
        "this process": claims._owner(),
        "a dead process": json.dumps({"machine": claims._machine(), "pid": dead_process()}),
        "another machine": json.dumps({"machine": "elsewhere", "pid": os.getpid()}),
        "nobody yet": "",  # killed between making the file and writing into it
    }
    claim = write_claim(path, owners[of], age)
    with claimed(path) as is_mine:
        assert is_mine == taken
        assert claim.exists()
    assert claim.exists() != taken


def test_a_claim_is_held_by_touching_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "BEAT", 0.02)
    path = tmp_path / "shard"
    with claimed(path) as is_mine:
        assert is_mine
        claim = write_claim(path, claims._owner(), 1000)
        deadline = time.monotonic() + 10
        while time.time() - claim.stat().st_mtime > 500:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with claimed(path) as second:
            assert not second
    assert not list(tmp_path.iterdir())


# --- indexing -----------------------------------------------------------------------------------


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(represent, "BATCH", 4)
    monkeypatch.setattr(represent, "PICTURES", 2)
    monkeypatch.setattr(fill, "BATCH", 4)


def embed(model: Path, photos: Path, out: Path, number: int | None = 3) -> Filled:
    return embed_shards(model, photos, out=out, shards=number, num_workers=0, device="cpu")


@pytest.mark.usefixtures("small_batches")
def test_an_index_of_shards_is_that_of_the_photos(
    model: Path, photos: Path, tmp_path: Path
) -> None:
    (photos / "broken.png").write_bytes(b"no picture")
    done = embed(model, photos, tmp_path / "embedded")
    assert (done.own, done.manifest["images"], len(done.manifest["broken"])) == (3, 10, 1)
    made = index(model, embeddings=tmp_path / "embedded", out=tmp_path / "index")
    direct = index(model, photos, out=tmp_path / "direct", num_workers=0, device="cpu")
    assert (made.update.added, len(made.update.broken)) == (10, 1)
    keys = sorted(direct.index.engine.fingerprints())
    assert sorted(made.index.engine.fingerprints()) == keys
    assert made.index.record.collection == direct.index.record.collection
    for found, expected in zip(
        made.index.engine.get(keys), direct.index.engine.get(keys), strict=True
    ):
        assert found is not None
        assert expected is not None
        assert found[0] == expected[0]
        assert np.abs(found[1] - expected[1]).max() < 1e-3
    assert made.index.thumbnail(keys[0]) is not None
    again = index(model, embeddings=tmp_path / "embedded", out=tmp_path / "index").update
    assert (again.added, again.changed, again.unchanged) == (0, 0, 10)
    photos_again = index(model, photos, out=tmp_path / "index", num_workers=0, device="cpu")
    assert photos_again.update.unchanged == 10, "one index, whichever way it was made"


@pytest.mark.usefixtures("small_batches")
def test_an_index_follows_other_shards(model: Path, photos: Path, tmp_path: Path) -> None:
    embed(model, photos, tmp_path / "before")
    index(model, embeddings=tmp_path / "before", out=tmp_path / "index")
    write_photos(photos, range(10, 13))
    write_photo(photos / "000.png", 77)
    (photos / "002.png").unlink()
    embed(model, photos, tmp_path / "after", 2)
    made = index(model, embeddings=tmp_path / "after", out=tmp_path / "index")
    found = made.update
    assert (found.added, found.changed, found.removed, found.unchanged) == (3, 1, 1, 8)
    direct = index(model, photos, out=tmp_path / "direct", num_workers=0, device="cpu")
    assert made.index.engine.fingerprints() == direct.index.engine.fingerprints()


@pytest.mark.slow
@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("database", ["postgres", "milvus"])
def test_databases(
    database: str,
    model: Path,
    photos: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    pytest.importorskip("pgvector" if database == "postgres" else "milvus_lite")
    embed(model, photos, tmp_path / "embedded")
    url = f"milvus+{tmp_path / 'vectors.db'}"
    if database == "postgres":
        url = request.getfixturevalue("postgres_url")
    made = index(model, embeddings=tmp_path / "embedded", out=tmp_path / "index", engine=url)
    local = index(model, embeddings=tmp_path / "embedded", out=tmp_path / "local")
    assert made.index.engine.fingerprints() == local.index.engine.fingerprints()
    [found] = made.index.engine.get(["000.png"])
    [expected] = local.index.engine.get(["000.png"])
    assert found is not None
    assert expected is not None
    assert np.array_equal(found[1], expected[1])
    made.index.engine.close()


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("same", [True, False])
def test_two_processes_begin_at_the_same_moment(
    same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = ShardPlan(
        model="clip",
        digest="d",
        width=4,
        collection={},
        num_images=2,
        num_captions=0,
        items="i",
        num_shards=2,
    )
    check = files.check_out_folder

    def checked_late(folder: Path, *arguments: Any, **options: Any) -> None:
        """As if another process had written its plan after this one had looked for it."""
        other = plan if same else plan.model_copy(update={"num_shards": 3})
        (folder / "plan.json").write_text(other.model_dump_json())
        check(folder, *arguments, **options)

    monkeypatch.setattr(shards, "check_out_folder", checked_late)
    if same:
        shards.begin(tmp_path, plan)
    else:
        with pytest.raises(ValueError, match="is divided into 3 shards, got --shards 2"):
            shards.begin(tmp_path, plan)


def test_what_does_not_fit_a_folder(model: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "embedded"
    with pytest.raises(ValueError, match=r"embedded does not exist: expected embeddings that"):
        embed(model, photos, out, None)
    embed(model, photos, out)
    torch.manual_seed(1)
    other = clip(tmp_path / "other")
    with pytest.raises(ValueError, match=r"embedded has embeddings of another model, .*tiny"):
        embed(other, photos, out)
    with pytest.raises(ValueError, match=r"embedded has embeddings of .*tiny, not of .*other"):
        index(other, embeddings=out, out=tmp_path / "index")
    with pytest.raises(ValueError, match="is divided into 3 shards, got --shards 4: leave it out"):
        embed(model, photos, out, 4)
    write_photo(photos / "new.png", 50)
    with pytest.raises(ValueError, match=r"in an earlier state \(10 items then, 11 now\)"):
        embed(model, photos, out)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").touch()
    with pytest.raises(ValueError, match=r"has other things in it, letter\.txt"):
        embed(model, photos, tmp_path / "full")


@pytest.mark.usefixtures("small_batches")
def test_shards_that_are_missing_or_damaged(model: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "embedded"
    embed(model, photos, out)
    shard = out / "shard-00001-of-00003.arrow"
    whole = shard.read_bytes()
    shard.unlink()
    with pytest.raises(ValueError, match="has 2 of 3 shards: run the same `gradspace embed` again"):
        index(model, embeddings=out, out=tmp_path / "index")
    assert embed(model, photos, out, None).own == 1
    assert shard.read_bytes() == whole

    place = whole.find(open_shard(shard, read_plan(out)).vectors.tobytes())
    flipped = bytes([whole[place] ^ 1])
    embed(model, photos, tmp_path / "of others", 2)
    of_others = (tmp_path / "of others" / "shard-00001-of-00002.arrow").read_bytes()
    for content, reason in (
        (whole[:place] + flipped + whole[place + 1 :], "its digest does not match"),
        (whole[:-50], "is damaged"),
        (b"", "is damaged"),
        (of_others, "it belongs to other embeddings"),
    ):
        shard.unlink()  # which an index may have mapped
        shard.write_bytes(content)
        with pytest.raises(ValueError, match=rf"shard-00001.*{reason}.*delete it"):
            index(model, embeddings=out, out=tmp_path / "index")
    shard.unlink()
    embed(model, photos, out)
    assert len(index(model, embeddings=out, out=tmp_path / "index")) == 10


def test_a_model_without_embeddings(tmp_path: Path) -> None:
    scan = {"name": "scan", "width": 8, "word_width": 8}
    run = train_small(
        tmp_path / "run", model=scan, objective={"name": "nt-xent"}, training={"epochs": 1}
    )
    out = tmp_path / "embedded"
    said = refused("embed", run.folder, "--shards", "2", "--out", out)
    assert "scan scores pairs and has no embeddings" in said
    assert not out.exists()


def test_options_that_do_not_go_together(model: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "out")
    text = ("embed", model, "--text", "a dog", *out)
    assert "--text and --image go into a file" in refused(*text, "--shards", "2")
    assert "--num-workers is for --shards" in refused(*text, "--num-workers", "2")
    given = ("index", model, "--embeddings", tmp_path, *out)
    assert "--embeddings defines what is indexed" in refused(*given, "--split", "dev")
    assert "has no plan.json: expected embeddings that" in refused(*given)
    assert "name what to index" in refused("embed", model, "--shards", "2", *out)


@pytest.mark.usefixtures("small_batches")
def test_a_full_disk(model: Path, photos: Path, small_disk: Path) -> None:
    try:
        out = small_disk / "embedded"
        free = os.statvfs(small_disk)
        (small_disk / "filler").write_bytes(bytes(free.f_bavail * free.f_frsize - 12 * 1024))
        with pytest.raises(ValueError, match=r"no space left for .*embedded: the shards in it are"):
            embed(model, photos, out, 10)
        there = {path.name: path.read_bytes() for path in out.glob("shard-*")}
        (small_disk / "filler").unlink()
        done = embed(model, photos, out, 10)
        assert done.own == 10 - len(there)
        assert all((out / name).read_bytes() == content for name, content in there.items())
        assert not list(out.glob(".*"))
    finally:
        subprocess.run(["umount", "--lazy", small_disk], check=True)


def test_a_killed_writer_leaves_nothing(model: Path, photos: Path, tmp_path: Path) -> None:
    embed(model, photos, tmp_path / "embedded", 1)
    shard = tmp_path / "embedded" / "shard-00000-of-00001.arrow"
    shard.rename(shard.with_name(f".{shard.name}.abcd"))
    embed(model, photos, tmp_path / "embedded", None)
    assert not list((tmp_path / "embedded").glob(".*"))
