"""Progress of a run."""

from __future__ import annotations

from dataclasses import dataclass

from gradspace.data.shards.order import Bookmark


@dataclass(frozen=True)
class TrainingState:
    """Progress of a run: everything that a checkpoint stores besides tensors."""

    epoch: int = 0
    batch: int = 0
    """Number of finished batches of the epoch."""
    step: int = 0
    """Number of updates of the weights."""
    best_rsum: float = -1.0
    loss_sum: float = 0.0
    """Sum over the finished batches of the epoch."""
    bookmark: tuple[int, int, int] = Bookmark()
    """Bookmark from which a stream is read."""
