"""Size augmentation of VSE-infinity: in training, regions are dropped and words are touched.

The numbers are those of the published code (github.com/woodfrog/vse_infty), which differ from the
paper's text.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradspace.models.pooling import length_mask

MASKED, REPLACED = 0.5, 0.1
"""Shares of the touched words that are masked and replaced; the others are deleted."""
WHOLE_GRIDS = 0.2
"""Share of the pictures that keep all cells of their grid."""


def region_rates(num_images: int, drop: float, *, grid: bool, vary: bool) -> Tensor:
    """Draw the rate at which each image's regions are dropped, [n, 1].

    For regions of a detector it is `drop` for all images. For cells of a grid it is `drop` times a
    random number from 0 to 1, or 0 if that is below 0.2, so that 0.48 of `drop` is dropped on
    average. With `vary` it is between 0 and twice `drop`, for regions of either kind.
    """
    drawn = torch.rand(num_images, 1)
    if vary:
        return 2 * drop * drawn
    if grid:
        return drop * drawn.where(drawn > WHOLE_GRIDS, 0)
    return torch.full((num_images, 1), drop)


def keep_some(mask: Tensor, rates: Tensor) -> Tensor:
    """Drop places of a mask [n, k] at each row's rate [n, 1], but never all."""
    rates = rates.to(mask.device, non_blocking=True)
    kept = mask & (torch.rand(mask.shape, device=mask.device) >= rates)
    return kept | (mask & ~kept.any(1, keepdim=True))


@dataclass(frozen=True, kw_only=True)
class WordTouch:
    """Settings for masking, replacing and deleting words of captions."""

    rate: float
    """Share of the words to touch."""
    num_tokens: int
    """Number of tokens from which a replacement is drawn."""
    mask: int | None
    """Token of a masked word; None leaves it unchanged."""
    keep_ends: bool
    """Whether the first and the last token are never touched."""
    vary: bool = False
    """Whether to draw the rate of every caption between 0 and twice `rate`."""


def touch_words(
    tokens: Tensor, lengths: Tensor, touch: WordTouch, continues: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Mask half of the touched words, replace a tenth, delete the rest and close the gaps.

    Further pieces of a word, which are marked in `continues` [num_tokens], share the fate of its
    first one, but each gets a replacement of its own. At least one token is kept.

    Random numbers are drawn on the device of the lengths, which is the CPU for a GRU, so that
    nothing synchronises. Only if words have pieces are they drawn on the device of the tokens.
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
