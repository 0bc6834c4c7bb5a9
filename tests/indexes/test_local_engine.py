"""The folder as an engine: versions, merging, readers beside a writer, and damaged files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gradspace.files import only_writer
from gradspace.indexes.contract import Item
from gradspace.indexes.local import LocalEngine
from gradspace.indexes.segment import Segment

WIDTH = 8


def unit(key: str) -> NDArray[np.float32]:
    drawn = np.random.default_rng(list(key.encode())).normal(size=WIDTH)
    return (drawn / np.linalg.norm(drawn)).astype(np.float32)


def put(engine: LocalEngine, *keys: str, text: str = "") -> None:
    items = [Item(key, "image", text=text, fingerprint=f"{key} {text}") for key in keys]
    engine.put(items, np.stack([unit(key) for key in keys]))


def found(engine: LocalEngine, key: str, k: int = 3) -> list[str]:
    [hits] = engine.search(unit(key)[None], k, "image")
    return [hit.item.key for hit in hits]


@pytest.fixture
def engine(tmp_path: Path) -> LocalEngine:
    return LocalEngine(tmp_path / "segments", WIDTH)


@pytest.mark.slow
def test_segments_stay_few_however_items_come(engine: LocalEngine) -> None:
    """One by one: as many segments as the number of items has binary digits, at most."""
    for number in range(100):
        put(engine, f"{number}")
    assert len(engine) == 100
    assert len(engine.segments()) <= 7
    assert set(engine.fingerprints()) == {str(number) for number in range(100)}
    for number in range(100):
        assert found(engine, f"{number}")[0] == f"{number}"


def test_what_is_replaced_or_removed_is_gone_and_its_room_is_used_again(
    engine: LocalEngine,
) -> None:
    put(engine, *"abcdefgh", text="old")
    put(engine, "a", text="new")
    assert len(engine) == 8
    assert [hit[0].text for hit in engine.get(["a"]) if hit] == ["new"]
    engine.remove(["b", "never there"])
    assert engine.get(["b"]) == [None]
    assert "b" not in found(engine, "b", 8)
    engine.remove([*"acdefgh"])
    assert len(engine) == 0
    assert engine.segments() == []
    assert [path.name for path in engine.folder.iterdir() if path.is_dir()] == []


def test_a_reader_sees_what_another_process_wrote(engine: LocalEngine) -> None:
    reader = LocalEngine(engine.folder, WIDTH)
    assert found(reader, "a") == []
    put(engine, "a", "b")
    assert found(reader, "a")[0] == "a"
    before = reader.segments()
    engine.remove(["a"])
    assert "a" not in found(reader, "a")
    assert before[0].vectors.shape == (2, WIDTH), "an old version that is open can still be read"


def test_an_interrupted_put_leaves_the_version_before_it(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(engine, "a")

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "_commit", fails)
        with pytest.raises(OSError, match="No space"):
            put(engine, "b", "c", "d")
    assert found(engine, "b") == ["a"]
    assert len([path for path in engine.folder.iterdir() if path.is_dir()]) == 1
    put(engine, "b")
    assert found(engine, "b") == ["b", "a"]


def test_an_interruption_right_after_a_version_was_written(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(engine, "a")
    commit = engine._commit

    def interrupted(segments: list[Segment]) -> None:
        commit(segments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine, "_commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            put(engine, "b", "c", "d")
    assert found(LocalEngine(engine.folder, WIDTH), "b", 1) == ["b"]


def test_two_writers(engine: LocalEngine) -> None:
    put(engine, "a")
    with (
        only_writer(engine.folder),
        pytest.raises(ValueError, match=r"another process is writing into .*segments: wait"),
    ):
        put(engine, "b")
    put(engine, "b")
    assert len(engine) == 2


@pytest.mark.parametrize("name", ["vectors.npy", "items.arrow"])
@pytest.mark.parametrize("left", [0, 40, -1])
def test_a_file_that_was_cut_short(engine: LocalEngine, name: str, left: int) -> None:
    put(engine, "a", "b")
    path = engine.segments()[0].folder / name
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(ValueError, match=rf"{name} is damaged \(.*\): index again into a new"):
        found(LocalEngine(engine.folder, WIDTH), "a")


def test_a_missing_file(engine: LocalEngine) -> None:
    put(engine, "a")
    (engine.segments()[0].folder / "vectors.npy").unlink()
    with pytest.raises(ValueError, match=r"vectors.npy is missing: index again"):
        found(LocalEngine(engine.folder, WIDTH), "a")


@pytest.mark.parametrize("name", ["../outside", "/etc", "..", ".hidden", ""])
def test_a_list_that_leads_outside(engine: LocalEngine, name: str) -> None:
    put(engine, "a")
    listed = [{"name": name, "kind": "image", "rows": 1, "gone": [], "faiss": None}]
    (engine.folder / "segments.json").write_text(json.dumps(listed))
    with pytest.raises(ValueError, match="is not a valid name of a segment"):
        found(LocalEngine(engine.folder, WIDTH), "a")


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"name": "a"}]', "null"])
def test_a_list_that_is_none(engine: LocalEngine, text: str) -> None:
    put(engine, "a")
    (engine.folder / "segments.json").write_text(text)
    with pytest.raises(ValueError, match=r"segments.json is damaged"):
        found(LocalEngine(engine.folder, WIDTH), "a")


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (np.zeros((1, WIDTH), np.float32), "the vector of 'a' is not of length 1"),
        (np.full((1, WIDTH), np.nan, np.float32), "the vector of 'a' is not of length 1"),
        (np.zeros((1, 3), np.float32), "vectors of 1 items of this index are 1 x 8; got 1 x 3"),
    ],
)
def test_vectors_that_are_none(
    engine: LocalEngine, vectors: NDArray[np.float32], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        engine.put([Item("a", "image")], vectors)
    with pytest.raises(ValueError, match="the key 'a' occurs twice"):
        put(engine, "a", "a")
    assert len(engine) == 0


def test_vectors_of_another_width(engine: LocalEngine) -> None:
    put(engine, "a")
    with pytest.raises(ValueError, match="vectors of width 8, and the index of width 16"):
        len(LocalEngine(engine.folder, 16))


def test_approximate_search_and_back(engine: LocalEngine) -> None:
    pytest.importorskip("faiss")
    keys = [f"{number}" for number in range(300)]
    for start in range(0, 300, 50):
        put(engine, *keys[start : start + 50])
    done: list[tuple[int, int]] = []
    recalls = engine.approximate("hnsw", lambda *now: done.append(now))
    assert 0.9 < recalls["image"] <= 1
    assert done[-1] == (300, 300)
    [segment] = engine.segments()
    assert segment.approximate is not None
    assert [found(engine, key, 1) for key in keys] == [[key] for key in keys]
    assert engine.approximate("hnsw", None) == recalls
    assert engine.segments() == [segment], "it is not built twice"
    put(engine, "new")
    engine.remove(["7"])
    assert found(engine, "new", 1) == ["new"], "what came later is searched exactly"
    assert "7" not in found(engine, "7", 300)
    assert engine.approximate(None) == {}
    assert [segment.approximate for segment in engine.segments()] == [None]
    assert len(engine) == 300


def test_a_damaged_approximate_index(engine: LocalEngine) -> None:
    pytest.importorskip("faiss")
    put(engine, "a", "b")
    engine.approximate("hnsw")
    path = engine.segments()[0].folder / "vectors.faiss"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ValueError, match=r"vectors.faiss is truncated, or is not a faiss index"):
        found(LocalEngine(engine.folder, WIDTH), "a")
