from __future__ import annotations

import pytest
import torch
from models import loops
from torch import nn

from gradspace.models.gcn import GCNBlock


@pytest.mark.parametrize("training", [True, False])
def test_is_the_equation(training: bool) -> None:
    torch.manual_seed(0)
    block = GCNBlock(4).double().train(training)
    for values in (block.norm.weight, block.norm.bias, block.norm.running_mean):
        assert values is not None
        nn.init.normal_(values)
    regions = torch.randn(3, 5, 4, dtype=torch.float64)
    expected = loops.gcn(block, [loops.matrix(image) for image in regions], training)
    torch.testing.assert_close(block(regions), torch.tensor(expected, dtype=torch.float64))


def test_a_new_block_changes_nothing() -> None:
    regions = torch.randn(2, 3, 4)
    assert torch.equal(GCNBlock(4)(regions), regions)
