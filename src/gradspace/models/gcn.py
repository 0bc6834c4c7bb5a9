"""Region relationship reasoning: VSRN's graph convolution over the regions of an image."""

from __future__ import annotations

from torch import Tensor, nn


class GCNBlock(nn.Module):
    """V* = V + BatchNorm(W (R V W_g)), R = theta(V) phi(V)^T / N (Li et al. 2019, eq. 2-4).

    Every pair of the N regions is connected with their affinity R. The BatchNorm starts at zero:
    a new block changes nothing. The papers' 1x1 convolutions are the linear layers.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.theta = nn.Linear(width, width)
        self.phi = nn.Linear(width, width)
        self.g = nn.Linear(width, width)
        self.out = nn.Linear(width, width, bias=False)
        self.norm = nn.BatchNorm1d(width)
        nn.init.zeros_(self.norm.weight)

    def forward(self, regions: Tensor) -> Tensor:
        """[n, regions, width] -> the same."""
        affinity = self.theta(regions) @ self.phi(regions).transpose(1, 2) / regions.shape[1]
        change: Tensor = self.norm(self.out(affinity @ self.g(regions)).flatten(0, 1))
        return regions + change.view_as(regions)
