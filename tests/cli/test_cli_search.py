"""`gradspace index` and `gradspace search` as a user types them."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
from commands import here, refused
from indexes.made_photos import write_photos
from small_runs import train_small
from typer.testing import CliRunner

from gradspace.cli import app
from gradspace.commands import EXAMPLE_MODEL
from gradspace.indexes import make


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_photos_from_a_folder_to_what_is_found(model: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "index"
    (photos / "broken.png").write_bytes(b"no picture")
    shown = run("index", model, photos, "--out", out, "--device", "cpu")
    assert "10 items (10 added, 0 changed, 0 removed, 0 unchanged, 1 left out)" in shown
    assert "left out: image 'broken.png'" in shown
    (photos / "broken.png").unlink()
    again = json.loads(run("index", model, photos, "--out", out, "--json"))
    assert again["items"] == again["unchanged"] == 10
    assert again["broken"] == []
    shown = run("search", out, "two red cubes", "--top", 3)
    assert "score" in shown
    assert len(shown.splitlines()) == 4
    found = json.loads(run("search", out, photos / "002.png", "--json"))
    assert found[0]["key"] == "002.png"
    assert found[0]["score"] == pytest.approx(1, abs=1e-3)
    assert found[0]["metadata"] == {"folder": "", "width": 48, "height": 40}
    both = ("a star", "--image", photos / "002.png", "--image-weight", 0.9)
    assert json.loads(run("search", out, *both, "--json"))[0]["key"] == "002.png"
    like = json.loads(run("search", out, "--like", "002.png", "--top", 50, "--json"))
    assert len(like) == 9
    below = json.loads(run("search", out, "a", "--where", "folder=below", "--top", 50, "--json"))
    assert {hit["metadata"]["folder"] for hit in below} == {"below"}
    assert "nothing found" in run("search", out, "a", "--where", "width>48")


def test_captions_and_metadata(model: Path, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("[red] ball\n<b>two</b> cats\n")
    run("index", model, tmp_path / "c.txt", "--out", tmp_path / "captions", "--name", "sayings")
    shown = run("search", tmp_path / "captions", photos / "000.png")
    assert "[red] ball" in shown
    assert "<b>two</b> cats" in shown
    assert json.loads((tmp_path / "captions" / "index.json").read_text())["name"] == "sayings"
    (tmp_path / "facts.csv").write_text("path,year\n000.png,2020\n")
    out = tmp_path / "photos-index"
    run("index", model, photos, "--out", out, "--metadata", tmp_path / "facts.csv")
    found = json.loads(run("search", out, "a", "--where", "year>=2020", "--json"))
    assert [hit["key"] for hit in found] == ["000.png"]
    told = refused("search", out, "a", "--where", "width>1", "--where", "yaer>=2020")
    assert told.endswith("no item of photos-index has the field 'yaer'; did you mean 'year'?")
    assert "nothing found" in run("search", out, "a", "--where", "year>=2021")
    told = refused("search", tmp_path / "captions", "a", "--where", "year>=2020")
    assert told.endswith("no item of sayings has the field 'year'; the fields are none")


def test_photos_with_a_table_of_their_own(model: Path, photos: Path, tmp_path: Path) -> None:
    table, out = photos / "facts.csv", tmp_path / "index"
    table.write_text("path,year\n000.png,2020\n")
    assert json.loads(run("index", model, photos, "--out", out, "--metadata", table, "--json"))
    found = json.loads(run("search", out, "a", "--where", "year>=2020", "--json"))
    assert [hit["key"] for hit in found] == ["000.png"]
    shown = run("index", model, photos, "--out", out)
    assert "10 items (0 added, 1 changed, 0 removed, 9 unchanged, 0 left out)" in shown
    table.write_text("file,caption\n000.png,a dog\n")
    said = refused("index", model, photos, "--out", tmp_path / "other")
    assert "facts.csv has the columns file, caption; expected image and caption" in said
    run("index", model, photos, "--out", photos / "index", "--metadata", _facts(tmp_path))
    again = run("index", model, photos, "--out", photos / "index", "--metadata", _facts(tmp_path))
    assert "10 items (0 added, 0 changed, 0 removed, 10 unchanged, 0 left out)" in again


def _facts(folder: Path) -> Path:
    (folder / "facts.csv").write_text("path,year\n000.png,2020\n")
    return folder / "facts.csv"


def test_names_do_nothing_to_a_terminal(model: Path, photos: Path, tmp_path: Path) -> None:
    (photos / "000.png").rename(photos / "\x1b]0;me\x07\u202e[b] é.png")
    (photos / "[b]\x1b[2J.png").write_bytes(b"no picture")
    album = photos.rename(tmp_path / "al\x1b[2Jbum")
    shown = run("index", model, album, "--out", tmp_path / "index")
    assert "left out: image '[b]\\x1b[2J.png' in " in shown
    assert "/al\\x1b[2Jbum is broken" in shown
    shown += run("search", tmp_path / "index", "a")
    assert "\\x1b]0;me\\x07\\u202e[b] é.png" in shown
    (tmp_path / "c.txt").write_text("a \x1b[31mred\x1b[0m ball\n")
    run("index", model, tmp_path / "c.txt", "--out", tmp_path / "captions")
    shown += run("search", tmp_path / "captions", "a")
    assert "a \\x1b[31mred\\x1b[0m ball" in shown
    assert not set(shown) & {"\x1b", "\x07", "\u202e"}


@pytest.mark.slow
def test_other_engines(model: Path, photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    out = tmp_path / "approximate"
    shown = run("index", model, photos, "--out", out, "--approximate", "hnsw")
    assert "hnsw finds 100.0% of the 10 nearest images" in shown
    assert len(json.loads(run("search", out, "a", "--json"))) == 10
    assert json.loads(run("index", model, photos, "--out", out, "--json"))["recall"] == {}
    pytest.importorskip("milvus_lite")
    out, engine = tmp_path / "milvus", f"milvus+{tmp_path / 'photos.db'}"
    run("index", model, photos, "--out", out, "--engine", engine)
    assert not (out / "segments").exists()
    again = json.loads(run("index", model, photos, "--out", out, "--engine", engine, "--json"))
    assert again["unchanged"] == 10
    found = json.loads(run("search", out, photos / "002.png", "--json"))
    assert found[0]["key"] == "002.png"
    assert "keeps its vectors in milvus+" in refused("index", model, photos, "--out", out)
    flags = ("--engine", engine, "--approximate", "hnsw")
    assert "add ?hnsw=1 to --engine" in refused("index", model, photos, "--out", out, *flags)
    unknown = ("--engine", "mysql://host/db")
    assert "an engine is postgresql" in refused(
        "index", model, photos, "--out", tmp_path / "x", *unknown
    )


def test_a_run_indexes_its_own_dataset(tmp_path: Path) -> None:
    folder = train_small(tmp_path / "run", training={"epochs": 1}).folder
    run("index", folder, "--out", tmp_path / "index", "--split", "dev")
    assert "caption" in run("search", tmp_path / "index", "a red ball")
    found = json.loads(
        run("search", tmp_path / "index", "a red ball", "--find", "caption", "--json")
    )
    assert all(hit["kind"] == "caption" and hit["image"] for hit in found)
    assert here("search", tmp_path / "index", "a red ball").stderr == ""
    done = here("search", tmp_path / "index", "a Dog and a zebra", "--json")
    assert done.stderr == "the model has never seen 'dog', 'zebra'\n"
    assert len(json.loads(done.stdout)) == 10
    own = here("embed", folder, "--text", "a zebra", "--out", tmp_path / "vectors")
    assert own.stderr == "the model has never seen 'zebra'\n"


def test_the_way_for_photos_is_named_where_another_was_taken(
    model: Path, photos: Path, tmp_path: Path
) -> None:
    """The command of the sentence works, with another model in the place of its example."""
    run_on_features = train_small(tmp_path / "run", training={"epochs": 1}).folder
    album = photos.rename(tmp_path / "my photos")
    out = tmp_path / "index"
    for arguments in ((run_on_features, album, "--out", out), (album, "--out", out)):
        said = refused("index", *arguments)
        assert not out.exists()
        _, *words = shlex.split(said.split("`")[1])
        assert words == ["index", EXAMPLE_MODEL, str(album), "--out", str(out)]
    assert "10 added" in run(*(model if word == EXAMPLE_MODEL else word for word in words))
    run("index", run_on_features, "--out", tmp_path / "features")
    assert EXAMPLE_MODEL in refused("search", tmp_path / "features", album / "000.png")
    own = ("--image", album / "000.png", "--out", tmp_path / "vectors")
    assert EXAMPLE_MODEL in refused("embed", run_on_features, *own)
    assert EXAMPLE_MODEL in run("index", "--help")
    for command in ("train --data", "data check"):
        _, *words = shlex.split(refused(*command.split(), album).split("`")[1])
        assert words[:3] == ["index", EXAMPLE_MODEL, str(album)]
    assert EXAMPLE_MODEL not in refused("data", "check", model), "which has no photos"


def test_mistakes_get_one_sentence(model: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "index"
    assert "none does not exist: expected a folder of photos" in refused(
        "index", model, "none", "--out", out
    )
    assert "has no dataset of its own: name what" in refused("index", model, "--out", out)
    flags = ("--out", out, "--metadata", "facts.csv")
    assert "--metadata is for a folder" in refused("index", model, "scenes", *flags)
    assert not out.exists()
    file = tmp_path / "afile"
    file.write_text("")
    for place in (file, file / "index"):
        said = refused("index", model, photos, "--out", place)
        assert f"{file} is a file, and an index is a folder: choose another --out" in said
    run("index", model, photos, "--out", out)
    assert "is not an index: make an index with" in refused("search", tmp_path, "a")
    assert "none.jpg does not exist: expected an image" in refused("search", out, "none.jpg")
    assert "say what to search for" in refused("search", out)
    assert "is not valid UTF-8" in refused("search", out, "\udcff\udcfe")
    assert "a condition must be a field" in refused("search", out, "a", "--where", "year")
    assert "there is no item 'x.png'" in refused("search", out, "--like", "x.png")
    vectors = next(out.glob("segments/*/vectors.npy"))
    vectors.write_bytes(vectors.read_bytes()[:-10])
    assert "vectors.npy is damaged" in refused("search", out, "a")


def test_the_index_of_another_model(model: Path, photos: Path, tmp_path: Path) -> None:
    other, out = tmp_path / "other", tmp_path / "index"
    shutil.copytree(model, other)
    weights = next(other.glob("*.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-2] ^= 1
    weights.write_bytes(content)
    run("index", model, photos, "--out", out)
    assert "is an index of another model" in refused("index", other, photos, "--out", out)
    write_photos(tmp_path / "more", range(2))
    assert "is an index of" in refused("index", model, tmp_path / "more", "--out", out)
    assert len(json.loads(run("search", out, "a", "--json"))) == 10


def test_ctrl_c_says_how_to_go_on(
    model: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(make, "update_index", interrupted)
    done = here("index", model, photos, "--out", tmp_path / "index")
    told = "gradspace: stopped; what is indexed is kept, and the same command resumes\n"
    assert (done.returncode, done.stdout, done.stderr) == (130, "", told)
