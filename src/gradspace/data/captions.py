"""The captions of a split as tokens, encoded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from gradspace.data.dataset import Indices

Encode = Callable[[Sequence[str]], tuple[Tensor, Tensor]]
"""Function from captions to tokens, int64 [captions, words], and lengths, int64 [captions]."""

Span = tuple[int, int]
"""Start and end of a word in a caption."""

Spans = Callable[[str], list[Span | None]]
"""Function from a caption to the word of each token; None for tokens that belong to no word."""

AT_ONCE = 4096
"""Number of captions encoded in one go."""


class EncodedCaptions:
    """Tokens of captions by index, stored as one row of four bytes per token, without padding."""

    def __init__(self, encode: Encode, captions: Sequence[str]) -> None:
        tokens, lengths = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
        for start in range(0, len(captions), AT_ONCE):
            padded, count = (part.numpy() for part in encode(captions[start : start + AT_ONCE]))
            tokens.append(padded[np.arange(padded.shape[1]) < count[:, None]].astype(np.int32))
            lengths.append(count)
        self._tokens = np.concatenate(tokens)
        self._lengths = np.concatenate(lengths)
        self._starts = self._lengths.cumsum() - self._lengths

    def gather(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return tokens, int64 [captions, longest], 0 as padding, and lengths, int64 [captions]."""
        lengths = self._lengths[indices]
        place = np.arange(lengths.max(initial=0))
        inside = place < lengths[:, None]
        tokens = np.zeros(inside.shape, np.int64)
        tokens[inside] = self._tokens[(self._starts[indices][:, None] + place)[inside]]
        return torch.from_numpy(tokens), torch.from_numpy(lengths)
