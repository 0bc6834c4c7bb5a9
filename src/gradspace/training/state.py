"""How far a run is."""

from __future__ import annotations

from dataclasses import dataclass

from gradspace.data.shards.order import Bookmark


@dataclass(frozen=True)
class TrainingState:
    """How far a run is: what a checkpoint must know besides tensors."""

    epoch: int = 0
    batch: int = 0
    """Batches of the epoch that are done."""
    step: int = 0
    """Updates of the weights that are done."""
    best_rsum: float = -1.0
    loss_sum: float = 0.0
    """Of the batches of the epoch that are done."""
    bookmark: tuple[int, int, int] = Bookmark()
    """Where a stream is read on from."""
