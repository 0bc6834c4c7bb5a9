"""Packing of sequences of different lengths for an RNN.

torch's own packing loops over the lengths, and again over their gradients, which makes hundreds of
small copies in a training step. Here a single index packs and unpacks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence


@dataclass(frozen=True)
class Packing:
    """Layout of padded rows, [n, size, ...], in a packed sequence: the first steps of all first."""

    shape: tuple[int, int]
    """Numbers of rows and of places per row, n and size."""
    index: Tensor
    """Places in the n * size padded ones, [packed]."""
    batch_sizes: Tensor
    """Numbers of sequences with a first step, a second step, ...; on the CPU, as RNNs require."""
    order: Tensor
    """Sequences from the longest to the shortest, [n]."""
    place: Tensor
    """Place of each sequence in that order, [n]."""

    def pack(self, packed: Tensor) -> PackedSequence:
        """Wrap rows that were selected by `index`."""
        return PackedSequence(packed, self.batch_sizes, self.order, self.place)

    def pad(self, packed: Tensor) -> Tensor:
        """Spread [packed, ...] to [n, size, ...], with zeros elsewhere."""
        num_rows = self.shape[0] * self.shape[1]
        rows = packed.new_zeros(num_rows, *packed.shape[1:])
        return rows.index_copy(0, self.index, packed).view(*self.shape, *packed.shape[1:])


def packing(lengths: Tensor, size: int, device: torch.device) -> Packing:
    """Compute the packing of sequences padded to `size`, without synchronising if lengths are on
    the CPU."""
    longest_first, order = lengths.cpu().sort(descending=True, stable=True)
    longest, shortest = int(longest_first[0]), int(longest_first[-1])
    if not 0 < shortest <= longest <= size:
        raise ValueError(f"lengths must be 1 to {size}, got {shortest} to {longest}")
    steps = torch.arange(longest)[:, None]
    is_there = longest_first > steps
    index = (order * size + steps)[is_there]
    parts = (index, order, order.argsort())
    index, order, place = (part.to(device, non_blocking=True) for part in parts)
    return Packing((len(lengths), size), index, is_there.sum(1), order, place)
