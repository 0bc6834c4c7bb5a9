"""Image-text matching against plain loops: the draw of hard negatives, and its loss."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from gradspace.models.matching import (
    MatchingPairs,
    draw_negatives,
    draw_pairs,
    gumbel_noise,
    matching_loss,
)

IMAGE_IDS = torch.tensor([4, 7, 4, 9])
IMAGE_OF_TEXT = torch.tensor([0, 1, 2, 3, 3, 1])
"""Images 0 and 2 are one; texts 1 and 5, and 3 and 4, describe the same."""
TEMPERATURE = torch.tensor(0.07)


def loop_draws(scores: Tensor, seed: int) -> list[tuple[int, int, float]]:
    """Image, text and truth of all pairs, from the same noise."""
    torch.manual_seed(seed)
    num_images, num_texts = scores.shape
    for_images = gumbel_noise(torch.empty(num_texts, num_texts))
    for_texts = gumbel_noise(torch.empty(num_texts, num_images))
    image_of, ids = IMAGE_OF_TEXT.tolist(), IMAGE_IDS.tolist()
    positive, text_drawn, image_drawn = [], [], []
    for text in range(num_texts):
        image, own = image_of[text], ids[image_of[text]]
        positive.append((image, text, 1.0))
        best, chosen = -math.inf, -1
        for other in range(num_texts):
            if ids[image_of[other]] != own:
                value = float(scores[image, other] / TEMPERATURE + for_images[text, other])
                best, chosen = max((best, chosen), (value, other))
        text_drawn.append((image, chosen, 0.0))
        best, chosen = -math.inf, -1
        for other in range(num_images):
            if ids[other] != own:
                value = float(scores[other, text] / TEMPERATURE + for_texts[text, other])
                best, chosen = max((best, chosen), (value, other))
        image_drawn.append((chosen, text, 0.0))
    return positive + text_drawn + image_drawn


@pytest.mark.parametrize("seed", range(5))
def test_pairs_and_loss_are_those_of_the_loop(seed: int) -> None:
    scores = torch.rand(4, 6, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    expected = loop_draws(scores, seed)
    torch.manual_seed(seed)
    pairs = draw_pairs(scores, IMAGE_OF_TEXT, IMAGE_IDS, TEMPERATURE)
    found = zip(pairs.images.tolist(), pairs.texts.tolist(), pairs.matched.tolist(), strict=True)
    assert list(found) == expected
    assert pairs.counts.tolist() == [1.0] * 18

    logits = torch.randn(18, dtype=torch.float64)
    total = 0.0
    for (_, _, truth), logit in zip(expected, logits.tolist(), strict=True):
        matched = 1 / (1 + math.exp(-logit))
        total -= math.log(matched if truth else 1 - matched)
    assert matching_loss(logits, pairs).item() == pytest.approx(total / 18, rel=1e-6)


def test_equal_ids_are_never_drawn_however_high_they_score() -> None:
    own = IMAGE_IDS[:, None] == IMAGE_IDS[IMAGE_OF_TEXT]
    scores = torch.where(own, 100.0, 0.0)
    torch.manual_seed(0)
    for _ in range(200):
        pairs = draw_pairs(scores, IMAGE_OF_TEXT, IMAGE_IDS, TEMPERATURE)
        same = IMAGE_IDS[pairs.images] == IMAGE_IDS[IMAGE_OF_TEXT[pairs.texts]]
        assert torch.equal(same, pairs.matched == 1)


def test_draws_follow_the_softmax_of_the_negatives() -> None:
    logits = torch.tensor([0.3, 2.0, -0.5, 1.1, 0.0])
    own = torch.tensor([False, True, False, False, False])
    torch.manual_seed(0)
    drawn, some = draw_negatives(logits.expand(20_000, -1), own.expand(20_000, -1))
    assert some.all()
    counts = drawn.bincount(minlength=5)[~own]
    expected = logits[~own].softmax(0).double()
    assert drawn.bincount(minlength=5)[1] == 0
    assert chisquare(counts.numpy(), (20_000 * expected / expected.sum()).numpy()).pvalue > 0.01


def test_a_query_without_negatives_has_only_its_positive_pair() -> None:
    ids, rows = torch.tensor([3, 3]), torch.tensor([0, 1])
    pairs = draw_pairs(torch.rand(2, 2), rows, ids, TEMPERATURE)
    assert pairs.counts.tolist() == [1, 1, 0, 0, 0, 0]
    logits = torch.tensor([0.5, 1.0, 9.0, 9.0, 9.0, 9.0])
    expected = sum(math.log(1 + math.exp(-value)) for value in (0.5, 1.0)) / 2
    assert matching_loss(logits, pairs).item() == pytest.approx(expected)


def test_the_loss_is_cross_entropy_of_two_classes() -> None:
    both = torch.randn(7, 2, dtype=torch.float64)
    matched = torch.tensor([1.0, 0, 0, 1, 1, 0, 0])
    pairs = MatchingPairs(matched, matched, matched.double(), torch.ones(7))
    expected = torch.nn.functional.cross_entropy(both, matched.long())
    torch.testing.assert_close(matching_loss(both[:, 1] - both[:, 0], pairs), expected)
