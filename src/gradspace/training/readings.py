"""Losses and gradients read some steps later, so that no step waits for the GPU."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

EVERY = {"cpu": 1, "cuda": 10}
"""Number of steps whose values are read together."""


class Readings:
    """Losses of batches, with the norm of the gradient if the batch completed a step."""

    def __init__(self, device: torch.device) -> None:
        self.every = EVERY.get(device.type, 1)
        self._steps: list[int] = []
        self._numbers: list[Tensor] = []

    @property
    def are_due(self) -> bool:
        return len(self._steps) >= self.every

    def add(self, step: int, loss: Tensor, norm: Tensor | None) -> None:
        """Add the values of a batch; `step` is the number of updates before it."""
        self._steps.append(step)
        self._numbers.append(torch.stack([loss, torch.zeros_like(loss) if norm is None else norm]))

    def read(self) -> Iterator[tuple[int, float, float]]:
        """Yield step, loss and norm of everything added since the last call."""
        steps, numbers = self._steps, self._numbers
        self._steps, self._numbers = [], []
        if steps:
            for step, (loss, norm) in zip(steps, torch.stack(numbers).tolist(), strict=True):
                yield step, loss, norm
