"""Ranks, recalls, mAP and COCOS counts as the authors' own evaluations have them."""

from __future__ import annotations

import pytest
import torch
from published.reference import Reference, load
from torch import Tensor

import gradspace as gs
from gradspace.scores.positives import as_positives


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


@pytest.mark.parametrize("way", ["i2t", "t2i"])
def test_counts_of_nt_xent_are_those_of_icr(way: str) -> None:
    """Thresholds and weights of the softmax, without 1 / temperature; C^q over all queries."""
    given, scores, positives = counted("nt-xent")
    if way == "t2i":
        scores, positives = scores.t(), positives.t()
    found = gs.cocos("nt-xent", scores, positives, 0.01, convention="icr")
    assert found.queries_without > 0
    assert found.per_query == pytest.approx(float(given[f"{way}_n_high_grad"]))
    assert found.negative_weight == pytest.approx(float(given[f"{way}_high_grad"]))
    assert found.positive_weight == pytest.approx(float(given[f"1-s_{way}.diag.mean"]))


def test_counts_of_smooth_ap_are_those_of_icr() -> None:
    given, scores, positives = counted("smooth-ap")
    found = gs.cocos("smooth-ap", scores, positives, 0.01, convention="icr")
    assert found.per_query == pytest.approx(float(given["sum_i2t"]))
    assert found.queries_without == float(given["zeros_i2t"])


def test_counts_of_smooth_ap_from_text_to_image_are_of_the_own_image() -> None:
    """Their counter takes the images 5 i to 5 i + 4 for the positives of caption i.

    It reads past the end of the batch from the second fifth of the images on: those captions have
    no gradient by construction. With these images as positives, our count is theirs.
    """
    given, scores, positives = counted("smooth-ap")
    objective = gs.objective("smooth-ap")
    by_text = scores.t()
    num_texts, num_images = by_text.shape
    wrong = torch.arange(num_texts)[:, None] == torch.arange(num_images) // 5
    weights = gs.score_weights(objective, by_text, wrong)
    threshold = 0.01 * objective.sharpness
    mean = objective.num_contributing(weights, by_text, as_positives(wrong), threshold)
    counts = mean * wrong.sum(1)
    assert (counts == 0).sum() == float(given["zeros_t2i"]) >= num_texts - -(-num_images // 5)
    assert counts[counts > 0].mean() == pytest.approx(float(given["sum_t2i"]))
    ours = gs.cocos(objective, by_text, positives.t(), 0.01, convention="icr")
    assert ours.queries_without < float(given["zeros_t2i"])
