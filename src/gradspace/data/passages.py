"""Passages as tensors: texts that travel where images do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradspace.data.captions import Encode


@dataclass(frozen=True)
class PassageTokens:
    """Passages to one int64 matrix [passages, 1 + words]: the length, then tokens padded with 0.

    The length comes first because nothing else says where padding begins: 0 may be a token.
    """

    encode: Encode

    def __call__(self, passages: Sequence[str]) -> Tensor:
        tokens, lengths = self.encode(passages)
        return torch.cat([lengths[:, None], tokens], 1)
