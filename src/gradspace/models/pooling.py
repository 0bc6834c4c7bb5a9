"""Pooling of a set or sequence of features into one vector: mean, maximum, and GPO.

Every pooling takes features [n, k, d] and a mask [n, k], True where there is a feature.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor, nn


def length_mask(lengths: Tensor, size: int) -> Tensor:
    """Build a mask, bool [n, size], that is True in the first `lengths[i]` places of row i."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def masked_mean(features: Tensor, mask: Tensor) -> Tensor:
    return features.masked_fill(~mask[..., None], 0).sum(1) / mask.sum(1, keepdim=True)


def masked_max(features: Tensor, mask: Tensor) -> Tensor:
    return features.masked_fill(~mask[..., None], -math.inf).amax(1)


class GPO(nn.Module):
    """Generalized pooling operator (Chen et al. 2021, section 4): learned weights of sorted values.

    The values of every dimension are sorted, largest first, and v = sum over k of weight_k *
    sorted_k. The weights depend only on the position k and the number of features: a sinusoidal
    code of k, a bi-directional GRU over the codes with averaged directions, one linear unit, and a
    softmax with temperature 0.1.

    Relations: equal weights give the mean, weight 1 on the first place gives the maximum.
    """

    def __init__(self, code_width: int = 32, width: int = 32, temperature: float = 0.1) -> None:
        super().__init__()
        self.code_width = code_width
        self.temperature = temperature
        self.there = nn.GRU(code_width, width, batch_first=True)
        self.back = nn.GRU(code_width, width, batch_first=True)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):
            in_order, _, weights = self._sorted(features, mask)
            return (in_order @ weights[:, :, None]).squeeze(2)

    def summands(self, features: Tensor, mask: Tensor) -> Tensor:
        """Compute what every feature adds to the pooled vector, [n, k, d]; 0 where masked.

        The order of equal values within a dimension is up to the sorting.
        """
        with torch.autocast(features.device.type, enabled=False):
            in_order, places, weights = self._sorted(features, mask)
            weighted = in_order * weights[:, None]
            return torch.empty_like(weighted).scatter_(2, places, weighted).transpose(1, 2)

    def _sorted(self, features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sorted values and their origins, both [n, d, k], and the weights of places, [n, k]."""
        lengths, size = mask.sum(1), mask.shape[1]
        # Sorting the last dimension takes less than half the time of sorting the middle one.
        values = features.transpose(1, 2).to(self.score.weight.dtype).contiguous()
        values = values.masked_fill(~mask[:, None], -math.inf)
        in_order, places = values.sort(dim=2, descending=True)
        in_order.masked_fill_(~length_mask(lengths, size)[:, None], 0)
        return in_order, places, self.weights(lengths, size)

    def weights(self, lengths: Tensor, size: int) -> Tensor:
        """Compute the weight of every place, [n, size]; 0 beyond the length.

        They are computed for every possible length, so that a GPU is not queried for those of
        the batch. Read from the first place on, all lengths have the same states; read back from
        the last, each length has its own, and those beyond its first place are not used.
        """
        weight = self.score.weight
        codes, back = _codes(size, self.code_width, weight.device, weight.dtype)
        from_first: Tensor = self.there(codes[None])[0]
        from_last: Tensor = self.back(codes[back])[0]
        at_place = from_last.gather(1, back[:, :, None].expand_as(from_last))
        scores: Tensor = self.score((from_first + at_place) / 2).squeeze(2)
        beyond = torch.ones_like(scores, dtype=torch.bool).triu(1)
        weights = (scores / self.temperature).masked_fill(beyond, -math.inf).softmax(1)
        return weights[lengths - 1]


def position_codes(size: int, width: int) -> Tensor:
    """Alternate sin and cos of k / 10000^(2i / width), [size, width] (Vaswani et al. 2017)."""
    frequencies = 10000 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(size)[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)


@lru_cache(maxsize=256)
@torch.inference_mode(False)  # so that training can use them whoever calls first
def _codes(
    size: int, width: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Codes of `size` places, and [size, size] indices: n, n - 1, ..., 0 in row n, then 0.

    Row n lists the places of n + 1 features from the last to the first; as a permutation, it is its
    own inverse.
    """
    places = torch.arange(size, device=device)
    back = (places[:, None] - places).clamp(min=0)
    return position_codes(size, width).to(device, dtype), back
