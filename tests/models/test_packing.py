from __future__ import annotations

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from gradspace.models.packing import packing

CPU = torch.device("cpu")
LENGTHS = torch.tensor([3, 5, 1, 3, 4])


def test_it_packs_and_pads_as_torch_does() -> None:
    padded = torch.randn(5, 6, 2, dtype=torch.float64)
    expected = pack_padded_sequence(padded, LENGTHS, batch_first=True, enforce_sorted=False)
    packed = packing(LENGTHS, 6, CPU)
    found = packed.pack(padded.flatten(0, 1)[packed.index])
    torch.testing.assert_close(tuple(found), tuple(expected), rtol=0, atol=0)
    again, _ = pad_packed_sequence(expected, batch_first=True, total_length=6)
    assert torch.equal(packed.pad(found.data), again)


def test_an_rnn_gives_every_sequence_its_own_last_state() -> None:
    gru = torch.nn.GRU(2, 3, batch_first=True, bidirectional=True).double()
    padded = torch.randn(5, 6, 2, dtype=torch.float64, requires_grad=True)
    packed = packing(LENGTHS, 6, CPU)
    states, last = gru(packed.pack(padded.flatten(0, 1)[packed.index]))
    for row, length in enumerate(LENGTHS.tolist()):
        alone, end = gru(padded[row, :length])
        torch.testing.assert_close(packed.pad(states.data)[row, :length], alone)
        torch.testing.assert_close(last[:, row], end)
    (gradient,) = torch.autograd.grad(packed.pad(states.data).square().sum(), padded)
    there = torch.arange(6) < LENGTHS[:, None]
    assert gradient[there].all()
    assert not gradient[~there].any()


@pytest.mark.parametrize("lengths", [[3, 0], [7, 2]])
def test_lengths_that_cannot_be_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="must be 1 to 6"):
        packing(torch.tensor(lengths), 6, CPU)
