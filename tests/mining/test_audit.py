"""Audits of lists agree with plain loops, and find the false negatives of the built-in data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from mining.made import random_lists, random_split
from small_runs import train_small

from gradspace.data.open import open_dataset
from gradspace.data.readers.scenes import true_relevance
from gradspace.mining import (
    Suspect,
    false_negative_rate,
    find_suspects,
    mine_exact,
    most_suspicious,
)
from gradspace.mining import audit as module
from gradspace.mining.audit import intervals
from gradspace.mining.closeness import CaptionCloseness
from gradspace.runs.mine import mine
from gradspace.scores.represented import Embeddings

SPLIT = random_split()
LISTS = random_lists(SPLIT, 30, 12)
SHAPE = (len(SPLIT.captions), len(SPLIT.image_names))


@pytest.mark.parametrize("rows", [7, 4096])
@pytest.mark.parametrize("sets", [False, True])
def test_rates_are_those_of_loops(rows: int, sets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", rows)
    relevance = np.random.default_rng(0).random(SHAPE) < 0.2
    by_caption = [set(np.flatnonzero(row).tolist()) for row in relevance]
    found = false_negative_rate(LISTS, by_caption if sets else relevance)
    for rank in range(30):
        hits = [relevance[LISTS.texts_of_image[i, rank], i] for i in range(SHAPE[1])]
        assert found.texts.by_rank[rank] == pytest.approx(np.mean(hits))
    for rank in range(12):
        hits = [relevance[t, LISTS.images_of_text[t, rank]] for t in range(SHAPE[0])]
        assert found.images.by_rank[rank] == pytest.approx(np.mean(hits))
    assert list(found.texts.by_interval) == [(1, 5), (6, 10), (11, 20), (21, 30)]
    assert found.texts.by_interval[11, 20] == pytest.approx(found.texts.by_rank[10:20].mean())
    assert found.images.by_interval[11, 12] == pytest.approx(found.images.by_rank[10:].mean())
    assert found.images.overall == pytest.approx(found.images.by_rank.mean())


def test_intervals() -> None:
    assert intervals(1) == [(1, 1)]
    assert intervals(5) == [(1, 5)]
    assert intervals(6) == [(1, 5), (6, 6)]
    assert intervals(300)[3:] == [(21, 50), (51, 100), (101, 200), (201, 300)]
    assert intervals(1000)[-1] == (501, 1000)


def test_relevance_of_another_shape() -> None:
    with pytest.raises(ValueError, match=r"relevance must be a boolean array \[captions, images\]"):
        false_negative_rate(LISTS, np.zeros(SHAPE[::-1], np.bool_))
    with pytest.raises(ValueError, match="got float64 of shape"):
        false_negative_rate(LISTS, np.zeros(SHAPE))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"relevance has 2 entries for {SHAPE[0]} captions"):
        false_negative_rate(LISTS, [{1}, {2}])


def suspects_by_loops(num: int) -> list[tuple[float, int, int]]:
    pairs: dict[tuple[int, int], float] = {}
    positive = LISTS.positive_scores.astype(np.float32)
    for image, listed in enumerate(LISTS.texts_of_image):
        for text, score in zip(listed.tolist(), LISTS.text_scores[image], strict=True):
            excess = float(np.float32(score) - positive[text])
            pairs[text, image] = max(excess, pairs.get((text, image), -np.inf))
    for text, listed in enumerate(LISTS.images_of_text):
        for image, score in zip(listed.tolist(), LISTS.image_scores[text], strict=True):
            excess = float(np.float32(score) - positive[text])
            pairs[text, image] = max(excess, pairs.get((text, image), -np.inf))
    ordered = sorted((-excess, text, image) for (text, image), excess in pairs.items())
    return ordered[:num]


@pytest.mark.parametrize("rows", [7, 4096])
@pytest.mark.parametrize("num", [1, 13, 500, 100_000])
def test_suspects_are_those_of_loops(num: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", rows)
    found = most_suspicious(LISTS, num)
    expected = suspects_by_loops(num)
    assert [(s.caption, s.image) for s in found] == [(text, image) for _, text, image in expected]
    for suspect, (excess, text, _) in zip(found, expected, strict=True):
        assert suspect.positive_score == float(LISTS.positive_scores[text])
        assert suspect.score - suspect.positive_score == pytest.approx(-excess)


def test_captions_without_an_image_are_no_suspects() -> None:
    positive = LISTS.positive_scores.copy()
    positive[::2] = np.nan
    found = most_suspicious(replace(LISTS, positive_scores=positive), 50)
    assert len(found) == 50
    assert all(suspect.caption % 2 for suspect in found)
    with pytest.raises(ValueError, match="num is 0; use at least 1"):
        most_suspicious(LISTS, 0)


@pytest.mark.parametrize("most", [3, 10_000])
def test_suspects_are_told_apart_by_their_captions(most: int) -> None:
    """Plain loops over all pairs: who is close, who is an error, and everyone once."""
    lists = replace(LISTS, positive_scores=LISTS.positive_scores - np.float16(0.1))
    pool = ["a red ball", "two red balls", "a dog", "a dog in the snow", "three cats", "snow"]
    rng = np.random.default_rng(0)
    captions = [" ".join(rng.choice(pool, 2)) for _ in SPLIT.captions]
    owner = np.asarray(SPLIT.image_of_caption)
    found = find_suspects(lists, captions, owner, most, most)
    close = CaptionCloseness(captions, owner)
    expected: dict[str, list[tuple[int, int]]] = {"likely": [], "errors": []}
    ranked = [(*close.closest(s.caption, s.image), s) for s in most_suspicious(lists, 10**6)]
    for _, closeness, suspect in sorted(ranked, key=lambda each: -each[1]):
        if closeness >= module.CLOSE:
            expected["likely"].append((suspect.caption, suspect.image))
    for _, closeness, suspect in ranked:
        if closeness < module.FAR and suspect.score > suspect.positive_score:
            expected["errors"].append((suspect.caption, suspect.image))
    for name, pairs in expected.items():
        once: list[tuple[int, int]] = []
        for caption, image in pairs:
            if all(caption != c and image != i for c, i in once):
                once.append((caption, image))
        chosen = getattr(found, name)
        assert [(each.suspect.caption, each.suspect.image) for each in chosen] == once[:most]
        assert len(chosen) > 2
        for each in chosen:
            own, closeness = close.closest(each.suspect.caption, each.suspect.image)
            assert (each.own_caption, each.closeness) == (own, closeness)


@pytest.mark.slow
def test_what_is_close_is_more_often_true_than_the_rest(tmp_path: Path) -> None:
    """On the built-in data, whose truth is known."""
    run = train_small(
        tmp_path / "run",
        data={"num_train": 600},
        model={"width": 64, "word_width": 32},
        objective={"name": "nt-xent"},
        training={"epochs": 4, "learning_rate": 3e-3, "track_every": 1000},
    )
    mined = mine(run.folder, top_texts=60, top_images=20, device="cpu")
    assert mined.split is not None
    relevance = true_relevance(mined.split)

    def true(suspects: list[Suspect]) -> float:
        return float(np.mean([relevance[each.caption, each.image] for each in suspects]))

    found = find_suspects(mined.lists, mined.split.captions, mined.split.image_of_caption, 48, 24)
    likely = true([each.suspect for each in found.likely])
    assert likely > 0.1
    assert likely > 2 * true(most_suspicious(mined.lists, 48))
    assert likely > 2 * true([each.suspect for each in found.errors])


def test_a_perfect_model_lists_the_false_negatives_of_scenes_first() -> None:
    """Its scores are the truth: where a caption is true of other images, these come first."""
    split = open_dataset("scenes", num_train=60, num_dev=1, num_test=1).splits["train"]
    relevance = true_relevance(split)
    images = torch.eye(60)
    texts = torch.from_numpy(relevance).float()
    ids = torch.arange(60), torch.from_numpy(np.asarray(split.image_of_caption))
    embeddings = Embeddings(images, texts, *ids, split.image_names, split.captions)
    lists = mine_exact(embeddings, top_texts=200, top_images=40)
    lists.check_matches(split)
    rates = false_negative_rate(lists, relevance)
    assert 0 < rates.images.by_rank[0] < 1
    assert (np.diff(rates.images.by_rank) <= 0).all()
    others = relevance.sum(1) - relevance[np.arange(len(relevance)), ids[1].numpy()]
    assert rates.images.by_rank[0] == pytest.approx((others >= 1).mean())
    assert rates.images.by_rank[4] == pytest.approx((others >= 5).mean())
    suspect = most_suspicious(lists, 1)[0]
    assert relevance[suspect.caption, suspect.image]
