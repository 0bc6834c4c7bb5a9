"""Sequences of different lengths, packed for an RNN.

torch's own packing goes over the lengths one by one, and over their gradients again: hundreds of
small copies in a step of training. Here one index packs, and the same one unpacks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence


@dataclass(frozen=True)
class Packing:
    """How rows of a padded [n, size, ...] lie in a packed sequence, the first step of all first."""

    shape: tuple[int, int]
    """n and size."""
    index: Tensor
    """[packed]: places in the padded rows, of n * size."""
    batch_sizes: Tensor
    """Sequences that have a first step, a second step, ...; on the CPU, as RNNs want it."""
    order: Tensor
    """[n]: the sequences from the longest to the shortest."""
    place: Tensor
    """[n]: where each of them is in that order."""

    def pack(self, packed: Tensor) -> PackedSequence:
        """Of what `index` has chosen."""
        return PackedSequence(packed, self.batch_sizes, self.order, self.place)

    def pad(self, packed: Tensor) -> Tensor:
        """[n, size, ...] from [packed, ...], zeros where there is nothing."""
        num_rows = self.shape[0] * self.shape[1]
        rows = packed.new_zeros(num_rows, *packed.shape[1:])
        return rows.index_copy(0, self.index, packed).view(*self.shape, *packed.shape[1:])


def packing(lengths: Tensor, size: int, device: torch.device) -> Packing:
    """Of sequences padded to `size`; nothing waits for the device where lengths are on the CPU."""
    longest_first, order = lengths.cpu().sort(descending=True, stable=True)
    longest, shortest = int(longest_first[0]), int(longest_first[-1])
    if not 0 < shortest <= longest <= size:
        raise ValueError(f"lengths are {shortest} to {longest}: expected 1 to {size}")
    steps = torch.arange(longest)[:, None]
    is_there = longest_first > steps
    index = (order * size + steps)[is_there]
    parts = (index, order, order.argsort())
    index, order, place = (part.to(device, non_blocking=True) for part in parts)
    return Packing((len(lengths), size), index, is_there.sum(1), order, place)
