"""Rates of the published code, and plain loops with its draws."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gradspace.models.pooling import length_mask
from gradspace.models.size_augmentation import WordTouch, keep_some, region_rates, touch_words

MASK = 999
TOUCH = WordTouch(rate=0.2, num_tokens=900, mask=MASK, keep_ends=False)
SENTENCE = torch.arange(100, 120)


def dropped(rates: torch.Tensor, regions: int = 36) -> torch.Tensor:
    kept = keep_some(torch.ones(len(rates), regions, dtype=torch.bool), rates)
    return 1 - kept.float().mean(1)


def test_a_fifth_of_a_detectors_regions_is_dropped() -> None:
    torch.manual_seed(0)
    found = dropped(region_rates(4000, 0.2, grid=False, vary=False))
    assert found.mean().item() == pytest.approx(0.2, abs=0.005)
    assert found.std().item() == pytest.approx((0.2 * 0.8 / 36) ** 0.5, abs=0.005), "one rate"


def test_a_tenth_of_a_grid_is_dropped_and_of_a_fifth_of_the_grids_nothing() -> None:
    """u is uniform; nothing is dropped where u <= 0.2, and cells at the rate 0.2 u elsewhere."""
    torch.manual_seed(0)
    rates = region_rates(20000, 0.2, grid=True, vary=False)
    assert (rates == 0).float().mean().item() == pytest.approx(0.2, abs=0.01)
    assert rates[rates > 0].min().item() == pytest.approx(0.04, abs=0.001)
    assert rates.max().item() == pytest.approx(0.2, abs=0.001)
    found = dropped(rates, 256)
    assert found.mean().item() == pytest.approx(0.096, abs=0.002)
    assert (found == 0).float().mean().item() == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize("grid", [False, True])
def test_the_share_varies_on_request_from_nothing_upwards(grid: bool) -> None:
    torch.manual_seed(0)
    found = dropped(region_rates(4000, 0.2, grid=grid, vary=True))
    assert found.mean().item() == pytest.approx(0.2, abs=0.01)
    assert (found == 0).float().mean() > 0.05, "the full number is seen in training"


def test_some_region_is_always_kept() -> None:
    torch.manual_seed(0)
    mask = torch.tensor([[True, False, False]]).expand(2000, 3)
    assert torch.equal(keep_some(mask, torch.full((2000, 1), 0.9)), mask)


def test_words_are_masked_replaced_and_deleted_at_the_published_rates() -> None:
    """10, 2 and 8 of 100 words."""
    torch.manual_seed(0)
    tokens, lengths = SENTENCE.repeat(5000, 1), torch.full((5000,), 20)
    found, left = touch_words(tokens, lengths, TOUCH)
    there = length_mask(left, 20)
    num_words = 5000 * 20
    original = torch.isin(found, SENTENCE) & there
    assert (found[there] == MASK).sum() / num_words == pytest.approx(0.10, abs=0.005)
    assert 1 - left.sum() / num_words == pytest.approx(0.08, abs=0.005)
    other = there & ~original & (found != MASK)
    assert other.sum() / num_words == pytest.approx(0.02 * 880 / 900, abs=0.003)
    assert found[other].min() < 10
    assert found[other].max() > 890
    for word, first in ((found == MASK, found[:, 0] == MASK), (other, other[:, 0])):
        assert word.any(), "the first word is one as any other"
        assert first.any()


def test_what_is_left_keeps_its_order_without_gaps() -> None:
    torch.manual_seed(0)
    lengths = torch.randint(1, 21, (500,))
    tokens = SENTENCE.repeat(500, 1).where(length_mask(lengths, 20), 0)
    found, left = touch_words(tokens, lengths, replace(TOUCH, rate=0.5, keep_ends=True))
    for row, before, after in zip(found, lengths.tolist(), left.tolist(), strict=True):
        assert row[0] == 100
        assert row[after - 1] == 100 + before - 1, "the last token stays"
        kept = row[:after][torch.isin(row[:after], SENTENCE)]
        assert not row[after:].any()
        assert len(kept) >= min(before, 2)
    same, unchanged = touch_words(tokens, lengths, replace(TOUCH, rate=0.0))
    assert torch.equal(same, tokens)
    assert torch.equal(unchanged, lengths)


def test_a_caption_never_becomes_empty() -> None:
    torch.manual_seed(0)
    tokens, lengths = torch.tensor([[7, 0]]).repeat(500, 1), torch.ones(500, dtype=torch.long)
    _, left = touch_words(tokens, lengths, replace(TOUCH, rate=1.0))
    assert torch.equal(left, lengths)


def test_pieces_share_the_fate_of_their_word() -> None:
    """Plain loops over words of one to three pieces: a word is masked, deleted or kept as one."""
    torch.manual_seed(0)
    continues = torch.zeros(1000, dtype=torch.bool)
    continues[torch.arange(400, 800)] = True
    # [CLS] a b ##b c ##c ##c [SEP]
    row = torch.tensor([1, 100, 101, 401, 102, 402, 502, 2])
    tokens, lengths = row.repeat(4000, 1), torch.full((4000,), 8)
    touch = replace(TOUCH, keep_ends=True, mask=3, num_tokens=4)
    found, left = touch_words(tokens, lengths, touch, continues)
    words = [[100], [101, 401], [102, 402, 502]]
    kept = 0
    for caption, length in zip(found.tolist(), left.tolist(), strict=True):
        assert caption[0] == 1
        assert caption[length - 1] == 2
        inside = caption[1 : length - 1]
        for word in words:
            if word[0] in inside:
                place = inside.index(word[0])
                assert inside[place : place + len(word)] == word
                kept += 1
            else:
                assert not set(word) & set(inside)
    # One draw a word: the rates are those of words, not of pieces.
    assert kept / 12000 == pytest.approx(0.8, abs=0.015)


def test_each_piece_is_replaced_by_a_token_of_its_own() -> None:
    torch.manual_seed(0)
    continues = torch.tensor([False, False, True])
    tokens, lengths = torch.tensor([[1, 2]]).repeat(3000, 1), torch.full((3000,), 2)
    found, left = touch_words(tokens, lengths, replace(TOUCH, rate=1.0), continues)
    both = found[(left == 2) & (found != MASK).all(1)]
    assert (both[:, 0] != both[:, 1]).any()
    masked = (found == MASK).sum(1)
    assert set(masked.tolist()) == {0, 2}, "all pieces or none"


def test_without_a_mask_words_that_would_be_masked_stay() -> None:
    torch.manual_seed(0)
    tokens, lengths = SENTENCE.repeat(2000, 1), torch.full((2000,), 20)
    found, left = touch_words(tokens, lengths, replace(TOUCH, mask=None, num_tokens=50))
    there = length_mask(left, 20)
    assert (there & (found >= 100)).sum() / 40000 == pytest.approx(0.9, abs=0.01)
