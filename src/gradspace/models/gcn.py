"""Region relationship reasoning: VSRN's graph convolution over the regions of an image."""

from __future__ import annotations

from torch import Tensor, nn


class GCNBlock(nn.Module):
    """V* = V + BatchNorm(W (R V W_g)), R = theta(V) phi(V)^T / N (Li et al. 2019, eq. 2-4).

    Every pair of the N regions is connected by its affinity R. The BatchNorm starts at zero, so a
    new block changes nothing. The linear layers are the papers' 1x1 convolutions.
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
        """Relate regions, [n, regions, width], to each other."""
        affinity = self.theta(regions) @ self.phi(regions).transpose(1, 2) / regions.shape[1]
        change: Tensor = self.norm(self.out(affinity @ self.g(regions)).flatten(0, 1))
        return regions + change.view_as(regions)
