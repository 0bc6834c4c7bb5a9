"""An index file finds nearly what exact search finds, in true order, and never what it must not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from gradspace.indexes import approximate
from gradspace.indexes.approximate import Approximate, IndexKind, build
from gradspace.nearest.exact import Neighbours, top_rows

COUNT, WIDTH = 12_000, 16
KINDS: tuple[IndexKind, ...] = ("hnsw", "ivf-pq")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A matrix on disk, of a hundred clusters, with both its indices."""
    pytest.importorskip("faiss")
    folder = tmp_path_factory.mktemp("approximate")
    random = np.random.default_rng(0)
    centres = random.standard_normal((100, WIDTH))
    rows = centres[random.integers(100, size=COUNT)] + 0.7 * random.standard_normal((COUNT, WIDTH))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    np.save(folder / "vectors.npy", rows.astype(np.float16))
    for kind in KINDS:
        done: list[int] = []
        recall = build(folder / kind, held(folder), kind, done.append)
        assert done == [*range(16_384, COUNT, 16_384), COUNT]
        assert 0.8 < recall <= 1
        (folder / f"{kind}.recall").write_text(str(recall))
    return folder


def held(folder: Path) -> Tensor:
    return torch.from_numpy(np.load(folder / "vectors.npy", mmap_mode="c"))


def queries(count: int = 40) -> Tensor:
    vectors = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(7))
    return torch.nn.functional.normalize(vectors, dim=1)


def share_found(true: list[Neighbours], found: list[Neighbours]) -> float:
    pairs = zip(true, found, strict=True)
    return float(np.mean([np.isin(t[0], f[0]).mean() for t, f in pairs]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_most_is_found_in_true_order(folder: Path, kind: IndexKind) -> None:
    vectors = held(folder)
    found = Approximate(folder / kind, vectors).search(queries(), 10)
    for query, (rows, scores) in zip(queries(), found, strict=True):
        assert rows.shape == scores.shape == (10,)
        true = vectors[rows].double() @ query.double()
        np.testing.assert_allclose(scores, true.numpy(), atol=1e-6)
        assert (np.diff(scores) <= 0).all()
        assert len(set(rows.tolist())) == 10
    recall = float((folder / f"{kind}.recall").read_text())
    true_rows = top_rows(vectors, queries(), 10)
    assert share_found(true_rows, found) == pytest.approx(recall, abs=0.15)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_index_that_is_asked(
    folder: Path, kind: IndexKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Approximate(folder / kind, held(folder))
    monkeypatch.setattr(approximate, "top_rows", None)
    for allowed in (None, torch.arange(COUNT) < 11_500):
        assert [len(rows) for rows, _ in index.search(queries(), 5, allowed)] == [5] * 40


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_allowed", [COUNT - 1, 11_500, 6_000, 300, 7, 1, 0])
def test_only_what_is_allowed_is_found(folder: Path, kind: IndexKind, num_allowed: int) -> None:
    vectors = held(folder)
    allowed = torch.zeros(COUNT, dtype=torch.bool)
    allowed[torch.randperm(COUNT, generator=torch.Generator().manual_seed(3))[:num_allowed]] = True
    found = Approximate(folder / kind, vectors).search(queries(), 10, allowed)
    there = min(10, num_allowed)
    for rows, _ in found:
        assert len(rows) == there
        assert allowed[rows].all()
    true = top_rows(vectors, queries(), 10, allowed)
    assert share_found(true, found) > 0.8 if there else True


@pytest.mark.parametrize("kind", KINDS)
def test_more_than_there_is(folder: Path, kind: IndexKind) -> None:
    [(rows, scores)] = Approximate(folder / kind, held(folder)).search(queries(1), COUNT + 3)
    assert np.array_equal(np.sort(rows), np.arange(COUNT))
    assert (np.diff(scores) <= 0).all()


def test_an_index_that_finds_too_little_is_helped_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = held(folder)
    index = Approximate(folder / "hnsw", vectors)

    class Empty:
        def search(self, queries: object, k: int, params: object) -> object:
            return None, np.full((3, k), -1)

    monkeypatch.setattr(index, "_index", Empty())
    found = index.search(queries(3), 10)
    assert share_found(top_rows(vectors, queries(3), 10), found) == 1


def test_recall_is_measured_and_not_assumed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index that finds the wrong half of the rows is said to."""

    def half(self: Approximate, queries: Tensor, k: int) -> list[Neighbours]:
        return [(rows[::2], scores[::2]) for rows, scores in top_rows(self._vectors, queries, k)]

    monkeypatch.setattr(Approximate, "search", half)
    assert build(tmp_path / "index", held(folder), "hnsw") == 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_explained(folder: Path, tmp_path: Path, kind: IndexKind) -> None:
    vectors, path = held(folder), tmp_path / "index"
    whole = (folder / kind).read_bytes()
    for size in (len(whole) - 1, len(whole) // 2, 30, 3, 0):
        path.write_bytes(whole[:size])
        with pytest.raises(
            ValueError, match="index is truncated, or is not a faiss index: build it"
        ):
            Approximate(path, vectors)
    path.write_bytes(b"Ixxx" + whole[4:])
    with pytest.raises(ValueError, match="index is not a faiss index: build it again"):
        Approximate(path, vectors)
    with pytest.raises(ValueError, match="nowhere does not exist: build the index"):
        Approximate(tmp_path / "nowhere", vectors)
    with pytest.raises(ValueError, match="is for 12000 x 16 numbers, and the vectors are 5 x 16"):
        Approximate(folder / kind, vectors[:5])


def test_an_interrupted_build_leaves_the_old_file(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "index"
    path.write_text("old")

    def stop(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(path, held(folder), "hnsw", stop)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["index"]


def test_few_vectors(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    few = queries(3).half()
    assert build(tmp_path / "index", few, "hnsw") == 1
    found = Approximate(tmp_path / "index", few).search(few.float(), 5)
    assert [rows[0] for rows, _ in found] == [0, 1, 2]
    assert [len(rows) for rows, _ in found] == [3, 3, 3]
    with pytest.raises(
        ValueError, match="ivf-pq index needs at least 256 vectors, and there are 3"
    ):
        build(tmp_path / "index", few, "ivf-pq")


def test_without_faiss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ValueError, match="approximate search needs faiss, which is not installed"):
        build(tmp_path / "index", queries(3).half(), "hnsw")
