"""Pooling of a set or sequence of features into one vector: mean, maximum, and GPO.

Every pool takes features [n, k, d] and a mask [n, k], True where there is a feature.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor, nn

from gradspace.models.packing import Packing, packing


def length_mask(lengths: Tensor, size: int) -> Tensor:
    """bool [n, size], True in the first `lengths[i]` places of row i."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def masked_mean(features: Tensor, mask: Tensor) -> Tensor:
    return features.masked_fill(~mask[..., None], 0).sum(1) / mask.sum(1, keepdim=True)


def masked_max(features: Tensor, mask: Tensor) -> Tensor:
    return features.masked_fill(~mask[..., None], -math.inf).amax(1)


class GPO(nn.Module):
    """Generalized pooling operator (Chen et al. 2021, section 4): learnt weights for sorted values.

    Every dimension's values are sorted, largest first, and v = sum over k of weight_k * sorted_k.
    The weights depend on the position k and the number of features only: a sinusoidal code of k,
    a bi-directional GRU over the codes whose directions are averaged, one linear unit, and a
    softmax with temperature 0.1.

    Relations: equal weights are the mean, weight 1 on the first place the maximum.
    """

    def __init__(self, code_width: int = 32, width: int = 32, temperature: float = 0.1) -> None:
        super().__init__()
        self.code_width = code_width
        self.temperature = temperature
        self.gru = nn.GRU(code_width, width, batch_first=True, bidirectional=True)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):
            in_order, _, weights = self._sorted(features, mask)
            return (in_order @ weights[:, :, None]).squeeze(2)

    def summands(self, features: Tensor, mask: Tensor) -> Tensor:
        """What every feature adds to the pooled vector, [n, k, d]; 0 where there is none.

        Of equal values in a dimension, which is counted before the other is left to the sorting.
        """
        with torch.autocast(features.device.type, enabled=False):
            in_order, places, weights = self._sorted(features, mask)
            weighted = in_order * weights[:, None]
            return torch.empty_like(weighted).scatter_(2, places, weighted).transpose(1, 2)

    def _sorted(self, features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values and where they come from, both [n, d, k], and the weights of places, [n, k]."""
        lengths, size = mask.sum(1), mask.shape[1]
        # Sorting the last dimension takes less than half the time of sorting the middle one.
        values = features.transpose(1, 2).to(self.score.weight.dtype).contiguous()
        values = values.masked_fill(~mask[:, None], -math.inf)
        in_order, places = values.sort(dim=2, descending=True)
        in_order.masked_fill_(~length_mask(lengths, size)[:, None], 0)
        return in_order, places, self.weights(lengths, size)

    def weights(self, lengths: Tensor, size: int) -> Tensor:
        """[n, size]: the weight of every place, 0 beyond the length.

        They are computed once for every length that there can be, whichever a batch has: a GPU need
        not be asked for them.
        """
        weight = self.score.weight
        codes, packed = _all_codes(size, self.code_width, weight.device, weight.dtype)
        states: Tensor = self.gru(packed.pack(codes))[0].data
        states = states.view(len(states), 2, -1).mean(1)
        scores = packed.pad(self.score(states).squeeze(1), -math.inf)
        weights: Tensor = (scores / self.temperature).softmax(1)[lengths - 1]
        return weights


def position_codes(size: int, width: int) -> Tensor:
    """[size, width]: sin and cos of k / 10000^(2i / width) in turns (Vaswani et al. 2017)."""
    frequencies = 10000 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(size)[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)


@lru_cache(maxsize=256)
@torch.inference_mode(False)  # whoever asks first, training can use them
def _all_codes(
    size: int, width: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Packing]:
    """The codes of 1, 2, ..., `size` places, packed."""
    packed = packing(torch.arange(1, size + 1), size, device)
    codes = position_codes(size, width).to(device, dtype)
    return codes[packed.index % size], packed
