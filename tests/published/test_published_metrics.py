"""Ranks, recalls, mAP and COCOS counts as the authors' own evaluations have them."""

from __future__ import annotations

import pytest
import torch
from published.reference import Reference, load
from torch import Tensor

import gradspace as gs


def batch(given: Reference) -> tuple[Tensor, Tensor]:
    """Scores and positives, as many texts of an image as there are."""
    images, texts = given["images"], given["texts"]
    of_text = torch.arange(len(texts)) // (len(texts) // len(images))
    return images @ texts.t(), torch.arange(len(images))[:, None] == of_text


@pytest.mark.parametrize("direction", ["i2t", "t2i"])
def test_ranks_and_recalls_are_those_of_vsepp(direction: str) -> None:
    """Ranks start at 1 here, and the median of an even number of queries keeps its half."""
    reference = load("metrics")
    scores, positives = batch(reference.under("batch"))
    given = reference.under(direction)
    report = gs.retrieval_report(scores, positives)
    found = report.image_to_text if direction == "i2t" else report.text_to_image
    rows = (scores, positives) if direction == "i2t" else (scores.t(), positives.t())
    torch.testing.assert_close(gs.ranks(*rows), given["ranks"] + 1)
    recalls = [found.recall[k] for k in (1, 5, 10)]
    assert recalls == pytest.approx([float(given[f"r{k}"]) for k in (1, 5, 10)], abs=1e-4)
    assert len(set(recalls)) > 1
    assert found.mean_rank == pytest.approx(float(given["mean"]), abs=1e-5)
    assert found.median_rank // 1 == float(given["median"])


@pytest.mark.parametrize("k", [5, 10])
def test_average_precision_over_what_was_found_is_that_of_icr(k: int) -> None:
    """Ours divides by min(k, positives), so that what is not found counts."""
    given = load("icr").under("map")
    scores = given["scores"]
    positives = torch.arange(len(scores))[:, None] == torch.arange(scores.shape[1]) // 5
    found = gs.mean_average_precision(scores, positives, k, over="found")
    assert found == pytest.approx(float(given[f"at {k}"].mean()), abs=1e-9)
    assert gs.mean_average_precision(scores, positives, k) < found - 0.01


def counted(name: str) -> tuple[Reference, Tensor, Tensor]:
    given = load("icr").under(f"counts/{name}")
    return given, *batch(given)


@pytest.mark.parametrize("name", ["triplet", "triplet-hard"])
def test_counts_of_triplets_are_those_of_icr(name: str) -> None:
    given, scores, positives = counted(name)
    found = gs.cocos(name, scores, positives)
    assert 0 < found.queries_without < len(scores)
    assert found.per_query == pytest.approx(float(given["i2t_grads_mean"]))
    assert found.per_batch == float(given["i2t_grads_sum"])
    assert found.queries_without == float(given["zeros_i2t"])


def test_counts_of_triplets_from_text_to_image_are_by_caption() -> None:
    """Their counter sums triplets of the captions over the captions, so it has one for each image.

    The triplets are the same; how many there are for a query is not.
    """
    given, scores, positives = counted("triplet")
    found = gs.cocos("triplet", scores.t(), positives.t())
    assert found.per_batch == float(given["t2i_grad_sum"])
    assert found.per_query != pytest.approx(float(given["t2i_grads_mean"]))
    weights = gs.score_weights("triplet", scores.t(), positives.t())
    by_image = (weights > 0).sum(0).double()
    assert by_image[by_image > 0].mean() == pytest.approx(float(given["t2i_grads_mean"]))
    assert (by_image == 0).sum() == float(given["zeros_t2i"])


def test_counts_of_the_hardest_triplet_from_text_to_image_are_those_of_icr() -> None:
    given, scores, positives = counted("triplet-hard")
    found = gs.cocos("triplet-hard", scores.t(), positives.t())
    assert found.per_query == pytest.approx(float(given["t2i_grads_mean"]))
    assert found.per_batch == float(given["t2i_grad_sum"])
    assert found.queries_without == float(given["zeros_t2i"])
