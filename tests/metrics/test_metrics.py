"""Metrics against a brute-force sort, from matrices and from embeddings."""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest
import torch
from samples import random_batch
from torch import Tensor

import gradspace as gs
from gradspace.metrics import (
    cross_retrieval_ranks,
    rank_both,
    rank_rows,
    write_trec_qrels,
    write_trec_run,
)
from gradspace.scores import tiles
from gradspace.scores.positives import as_positives


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("many", [0, 100])
def test_ranks_equal_a_brute_force_sort(
    ties: bool, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradspace.metrics.ranking.MANY_SLOTS", many)
    for seed in range(500):
        scores, positives = random_batch(seed, 5, 8, ties)
        expected = [
            oracles.best_rank(row, mask)
            for row, mask in zip(scores.tolist(), positives.tolist(), strict=True)
        ]
        assert gs.ranks(scores, positives).tolist() == expected
        for over in ("positives", "found"):
            precisions = [
                oracles.average_precision(row, mask, 3, over)
                for row, mask in zip(scores.tolist(), positives.tolist(), strict=True)
                if any(mask)
            ]
            found = gs.mean_average_precision(scores, positives, k=3, over=over)
            assert found == pytest.approx(sum(precisions) / len(precisions), abs=1e-12)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles so small that a few dozen rows span several, as aligned in memory as real ones."""
    monkeypatch.setattr("gradspace.metrics.ranking.tile_size", lambda device: (16, 16))


def embeddings(num_images: int = 30, captions: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(num_images, 6, generator=generator)
    texts = images.repeat_interleave(captions, 0)
    texts = texts + torch.randn(texts.shape, generator=generator)
    return torch.nn.functional.normalize(images), torch.nn.functional.normalize(texts)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("many", [0, 100])
def test_classes_with_many_members(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has most of the items, and some that have one."""
    monkeypatch.setattr("gradspace.metrics.ranking.MANY_SLOTS", many)
    images, texts = embeddings(40, captions=1)
    labels = torch.arange(40).clamp(min=28)
    scores, positives = images @ texts.t(), gs.match_ids(labels, labels)
    mask = labels[:, None] == labels
    for found, matrix in zip(
        rank_both(gs.EmbeddingScores(images, texts), positives), (scores, scores.t()), strict=True
    ):
        rows = zip(matrix.tolist(), mask.tolist(), strict=True)
        assert found.best.tolist() == [oracles.best_rank(row, own) for row, own in rows]


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_tiles_of_embeddings_equal_the_matrix(shuffled: bool, dtype: torch.dtype) -> None:
    images, texts = (e.to(dtype) for e in embeddings())
    image_ids, text_ids = torch.arange(30), torch.arange(30).repeat_interleave(5)
    if shuffled:
        order = torch.randperm(150, generator=torch.Generator().manual_seed(1))
        texts, text_ids = texts[order], text_ids[order]
    positives = gs.match_ids(image_ids, text_ids)
    exact = images.double() @ texts.double().t()
    found = rank_both(gs.EmbeddingScores(images, texts), positives)
    for direction, expected in zip(found, rank_both(exact, positives), strict=True):
        assert torch.equal(direction.among_negatives, expected.among_negatives)
        assert torch.equal(direction.among_positives, expected.among_positives)
    rows = rank_rows(gs.EmbeddingScores(images, texts), positives)
    assert torch.equal(rows.among_negatives, found[0].among_negatives)
    swapped = gs.ranks(gs.EmbeddingScores(texts, images), gs.match_ids(text_ids, image_ids))
    assert torch.equal(swapped, found[1].best)


@pytest.mark.usefixtures("small_tiles")
def test_exact_ties_survive_tiling() -> None:
    """Copies of one caption under several images tie exactly, wherever they lie."""
    images, texts = embeddings(num_images=80, captions=1)
    texts[7::5] = texts[2]
    texts[33] = texts[2]
    images[33:35] = images[4]
    positives = gs.match_ids(torch.arange(80), torch.arange(80))
    by_row, by_column = rank_both(gs.EmbeddingScores(images, texts), positives)
    copies = {2, 33, *range(7, 80, 5)}
    for image in copies:
        higher = (images[image] @ texts.t() > images[image] @ texts[2] + 1e-6).sum()
        assert by_row.best[image] == 1 + higher + (len(copies) - 1) / 2
    higher = (images @ texts[4] > images[4] @ texts[4] + 1e-6).sum()
    assert by_column.best[4] == 1 + higher + 2 / 2


def test_a_constant_matrix_gets_chance() -> None:
    scores = torch.full((50, 250), 0.3)
    positives = torch.arange(50)[:, None] == torch.arange(250) // 5
    report = gs.retrieval_report(scores, positives)
    assert report.image_to_text.recall == {1: 0, 5: 0, 10: 0}
    assert report.text_to_image.recall == {1: 0, 5: 0, 10: 0}
    assert report.image_to_text.mean_rank == 1 + 245 / 2
    assert report.text_to_image.mean_rank == (50 + 1) / 2


def test_two_equal_captions_of_one_image_on_top_are_no_miss() -> None:
    scores = torch.tensor([[0.9, 0.9, 0.1]])
    assert gs.ranks(scores, torch.tensor([[True, True, False]])).tolist() == [1]
    assert gs.ranks(scores, torch.tensor([[True, False, False]])).tolist() == [1.5]


def test_report_by_hand() -> None:
    """Two images, two captions each; image 1's captions are beaten by image 0's."""
    scores = torch.tensor([[0.9, 0.2, 0.5, 0.1], [0.8, 0.7, 0.6, 0.3]])
    positives = torch.tensor([[True, True, False, False], [False, False, True, True]])
    report = gs.retrieval_report(scores, positives, ks=(1, 2))
    assert report.image_to_text.recall == {1: 50, 2: 50}
    assert report.text_to_image.recall == {1: 75, 2: 100}
    assert report.rsum == 50 + 50 + 75 + 100
    assert report.image_to_text.median_rank == 2  # ranks 1 and 3
    assert report.text_to_image.mean_rank == (1 + 2 + 1 + 1) / 4
    assert report.image_to_text.average_recall == 50
    # image 0: places 1 and 3 -> (1 + 2/3) / 2; image 1: places 3 and 4 -> (1/3 + 2/4) / 2
    expected = statistics.mean([(1 + 2 / 3) / 2, (1 / 3 + 2 / 4) / 2])
    assert report.image_to_text.map_at_5 == pytest.approx(expected)
    assert report.image_to_text.metrics["mAP@5 found"] == pytest.approx(expected), "all are found"
    # cross ranks max(2 r_i - 1, r_t): pairs (1,1) -> 1, (2,2) -> 3, (1,3) -> 3, (1,3) -> 3
    assert report.cross_rank["1"] == 1
    assert report.cross_rank["2-5"] == 3
    assert "rsum" in str(report)


def test_cross_retrieval_ranks_by_loop() -> None:
    scores, positives = random_batch(3, 6, 9, ties=True)
    pairs = as_positives(positives)
    found = cross_retrieval_ranks(*rank_both(scores, pairs), pairs)
    expected = []
    for i, t in zip(*(index.tolist() for index in pairs.pairs()), strict=True):
        s = scores[i, t]
        row, column = scores[i][~positives[i]], scores[:, t][~positives[:, t]]
        r_t = 1 + (row > s).sum() + (row == s).sum() / 2
        r_i = 1 + (column > s).sum() + (column == s).sum() / 2
        expected.append(max(9 / 6 * r_i - (9 / 6 - 1), r_t))
    torch.testing.assert_close(found, torch.tensor(expected).double())


def test_folds_are_the_mean_of_their_parts() -> None:
    images, texts = embeddings()
    positives = gs.match_ids(torch.arange(30), torch.arange(30).repeat_interleave(5))
    folded = gs.retrieval_report(gs.EmbeddingScores(images, texts), positives, folds=3)
    parts = [
        gs.retrieval_report(
            images[k : k + 10] @ texts[5 * k : 5 * k + 50].t(),
            torch.arange(10)[:, None] == torch.arange(50) // 5,
        )
        for k in (0, 10, 20)
    ]
    assert folded.rsum == pytest.approx(statistics.mean(part.rsum for part in parts))
    assert folded.text_to_image.recall[1] == pytest.approx(
        statistics.mean(part.text_to_image.recall[1] for part in parts)
    )
    assert folded.cross_rank["1"] == pytest.approx(
        statistics.mean(part.cross_rank["1"] for part in parts)
    )
    scores = images @ texts.t()
    assert gs.retrieval_report(scores, positives, folds=3).rsum == pytest.approx(folded.rsum)


def test_queries_without_positives_are_left_out() -> None:
    scores = torch.eye(3)
    positives = torch.eye(3, dtype=torch.bool)
    positives[2, 2] = False
    assert gs.recall(scores, positives)[1] == 100
    assert gs.retrieval_report(scores, positives).image_to_text.num_queries == 2
    assert gs.ranks(scores, positives)[2] == torch.inf


def test_bad_scores_are_named() -> None:
    scores, positives = torch.rand(6, 6), torch.eye(6, dtype=torch.bool)
    for value in (torch.nan, torch.inf):
        scores[4, 2] = value
        with pytest.raises(ValueError, match="in 1 of 6 rows, the first in row 4"):
            gs.recall(scores, positives)
    with pytest.raises(ValueError, match=r"queries has NaN .* row 4"):
        gs.EmbeddingScores(scores, positives.float())
    with pytest.raises(ValueError, match=re.escape("same shape, got [5, 6] and [6, 6]")):
        gs.recall(torch.rand(5, 6), positives)
    with pytest.raises(ValueError, match="no query has a positive"):
        gs.recall(torch.rand(6, 6), ~(positives | ~positives))
    with pytest.raises(ValueError, match="6 images cannot be cut into 4 equal folds"):
        gs.retrieval_report(torch.rand(6, 6), positives, folds=4)


@pytest.mark.parametrize("ks", [(), 1])
def test_cuts_are_several(ks: Any) -> None:
    for metric in (gs.recall, gs.retrieval_report):
        with pytest.raises(ValueError, match=re.escape(f"such as (1, 5, 10), got {ks}")):
            metric(torch.eye(4), torch.eye(4).bool(), ks=ks)


def test_a_fold_without_texts_is_named() -> None:
    mask = torch.eye(4).bool()
    mask[2:] = False
    with pytest.raises(ValueError, match="images 2 to 3, a fold, have no text at all"):
        gs.retrieval_report(torch.eye(4), mask, folds=2)


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
def test_a_cut_is_a_positive_whole_number(k: Any) -> None:
    scores, positives = torch.rand(6, 6), torch.eye(6, dtype=torch.bool)
    expected = f"must be a positive whole number, got {k}"
    with pytest.raises(ValueError, match=f"k {expected}"):
        gs.mean_average_precision(scores, positives, k=k)
    for metric in (gs.recall, gs.retrieval_report):
        with pytest.raises(ValueError, match=f"every k of ks {expected}"):
            metric(scores, positives, ks=(1, k))


def test_average_precision_is_over_positives_or_what_was_found() -> None:
    scores, positives = torch.rand(6, 6), torch.eye(6, dtype=torch.bool)
    over: Any = "hits"
    with pytest.raises(ValueError, match="over must be 'positives' or 'found', got 'hits'"):
        gs.mean_average_precision(scores, positives, over=over)


def test_positives_are_a_tensor() -> None:
    positives: Any = np.eye(6, dtype=bool)
    with pytest.raises(ValueError, match=r"positives must be a tensor, got numpy\.ndarray; "):
        gs.recall(torch.rand(6, 6), positives)


def test_embeddings_never_build_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = 0
    compute = tiles.EmbeddingScores.tile

    def watched(self: tiles.EmbeddingScores, rows: slice, columns: slice) -> Tensor:
        nonlocal largest
        tile = compute(self, rows, columns)
        largest = max(largest, tile.numel())
        return tile

    monkeypatch.setattr(tiles.EmbeddingScores, "tile", watched)
    images, texts = torch.randn(1500, 4), torch.randn(7500, 4)
    ids = torch.arange(1500)
    gs.retrieval_report(gs.EmbeddingScores(images, texts), gs.match_ids(ids, ids.repeat(5)))
    assert largest <= 512 * 1024 < 1500 * 7500


# --- TREC files ---------------------------------------------------------------------------------


def test_ir_measures_agrees_with_our_recall(tmp_path: Path) -> None:
    ir_measures = pytest.importorskip("ir_measures")
    images, texts = embeddings()
    positives = gs.match_ids(torch.arange(30), torch.arange(30).repeat_interleave(5))
    scores = gs.EmbeddingScores(images, texts)
    names = [f"image{i}" for i in range(30)], [f"text{i}" for i in range(150)]
    write_trec_run(tmp_path / "run.txt", scores, *names, depth=50)
    write_trec_qrels(tmp_path / "qrels.txt", positives, *names)
    run = list(ir_measures.read_trec_run(str(tmp_path / "run.txt")))
    qrels = list(ir_measures.read_trec_qrels(str(tmp_path / "qrels.txt")))
    found = ir_measures.calc_aggregate(
        [ir_measures.Success @ 1, ir_measures.Success @ 5], qrels, run
    )
    ours = gs.recall(scores, positives, ks=(1, 5))
    assert found[ir_measures.Success @ 1] * 100 == pytest.approx(ours[1])
    assert found[ir_measures.Success @ 5] * 100 == pytest.approx(ours[5])
    assert len(run) == 30 * 50


def test_trec_names_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="without spaces, got 'a b'"):
        write_trec_run(tmp_path / "run", torch.eye(2), ["a b", "c"], ["d", "e"])
    with pytest.raises(ValueError, match=re.escape("got 1 query names and 2 candidate names")):
        write_trec_run(tmp_path / "run", torch.eye(2), ["a"], ["d", "e"])
    assert not list(tmp_path.iterdir())
