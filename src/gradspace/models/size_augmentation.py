"""Size augmentation of VSE-infinity: in training, regions are dropped and words are touched.

Numbers are those of the published code (github.com/woodfrog/vse_infty), which differ from the text
of the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradspace.models.pooling import length_mask

MASKED, REPLACED = 0.5, 0.1
"""Shares of the words that are touched; the others are deleted."""
WHOLE_GRIDS = 0.2
"""Share of the pictures that keep all cells of their grid."""


def region_rates(num_images: int, drop: float, *, grid: bool, vary: bool) -> Tensor:
    """Draw the rate at which each image's regions are dropped, [n, 1].

    Regions of a detector: `drop` for all. Cells of a grid: `drop` times a number from 0 to 1, and 0
    where that is below 0.2, so that 0.48 of `drop` is dropped on average. `vary`: between 0 and
    twice `drop`, whatever the regions are.
    """
    drawn = torch.rand(num_images, 1)
    if vary:
        return 2 * drop * drawn
    if grid:
        return drop * drawn.where(drawn > WHOLE_GRIDS, 0)
    return torch.full((num_images, 1), drop)


def keep_some(mask: Tensor, rates: Tensor) -> Tensor:
    """Drop places of a mask [n, k] at the rates [n, 1] of the rows; never all."""
    rates = rates.to(mask.device, non_blocking=True)
    kept = mask & (torch.rand(mask.shape, device=mask.device) >= rates)
    return kept | (mask & ~kept.any(1, keepdim=True))


@dataclass(frozen=True, kw_only=True)
class WordTouch:
    """How the words of captions are touched."""

    rate: float
    """Share of the words."""
    num_tokens: int
    """Of which a replaced word becomes any."""
    mask: int | None
    """What a masked word becomes; None: it stays."""
    keep_ends: bool
    """Is the first and the last token never touched?"""
    vary: bool = False
    """Draw the rate of every caption between 0 and twice `rate`."""


def touch_words(
    tokens: Tensor, lengths: Tensor, touch: WordTouch, continues: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Mask half of the touched words, replace a tenth, delete the rest and close the gaps.

    Pieces of a word, which follow its first one and are marked in `continues` [tokens there are],
    share its fate, but each is replaced by another token. At least one token stays.

    It is drawn where the lengths are, on the CPU, where a GRU wants them: nothing waits for a GPU.
    Only where a word has pieces is it drawn where the tokens are.
    """
    if continues is not None:
        lengths = lengths.to(tokens.device, non_blocking=True)
    size, device = tokens.shape[1], lengths.device
    rate = torch.full((len(tokens), 1), touch.rate, device=device)
    if touch.vary:
        rate = 2 * rate * torch.rand(rate.shape, device=device)
    drawn = torch.rand(tokens.shape, device=device)
    if continues is not None:
        drawn = drawn.gather(1, (~continues[tokens]).cumsum(1).sub(1).clamp(min=0))
    there = length_mask(lengths, size)
    touched = there & (drawn < rate)
    if touch.keep_ends:
        places = torch.arange(size, device=device)
        touched &= (places > 0) & (places < lengths[:, None] - 1)
    masked, replaced = drawn < MASKED * rate, drawn < (MASKED + REPLACED) * rate
    kept = there & ~(touched & ~replaced)
    kept |= there & ~kept.any(1, keepdim=True)
    becomes = torch.randint(touch.num_tokens, tokens.shape, device=device)
    becomes = becomes.where(~masked, -1 if touch.mask is None else touch.mask)
    becomes = becomes.where(touched & replaced, -1)
    order = kept.logical_not().int().argsort(dim=1, stable=True)
    lengths = kept.sum(1)
    padding = ~length_mask(lengths, size)
    becomes, order, padding = (
        x.to(tokens.device, non_blocking=True) for x in (becomes, order, padding)
    )
    tokens = tokens.where(becomes < 0, becomes)
    return tokens.gather(1, order).masked_fill(padding, 0), lengths
