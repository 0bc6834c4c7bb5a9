"""Delayed checks of GPU batches: an error in one batch is raised when the next one arrives.

Asking a GPU whether a batch contains NaN would synchronise. Its answer is copied asynchronously
instead, and read one batch later, when it has long arrived.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradspace.checks import check_embeddings
from gradspace.execution.batch_pairs import NO_PAIR


class _Pending(NamedTuple):
    facts: Tensor
    """CPU copy, complete after the event: a value first, the number of queries with a positive
    last."""
    event: torch.cuda.Event
    images: Tensor
    texts: Tensor


class LastBatch:
    """Keeps the facts of one batch until the next one."""

    def __init__(self) -> None:
        self._pending: _Pending | None = None

    def remember(self, facts: Tensor, images: Tensor, texts: Tensor) -> None:
        if facts.is_cuda and not torch.cuda.is_current_stream_capturing():
            on_cpu = torch.empty(facts.shape, dtype=facts.dtype, pin_memory=True)
            on_cpu.copy_(facts, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self._pending = _Pending(on_cpu, event, images.detach(), texts.detach())

    def remember_sums(self, images: Tensor, texts: Tensor) -> None:
        """Remember the sum of all embeddings, which is NaN if one of them is."""
        if images.is_cuda and not torch.compiler.is_compiling():
            total = images.detach().sum(dtype=torch.float32) + texts.detach().sum()
            self.remember(torch.stack([total, torch.ones_like(total)]), images, texts)

    def check(self) -> None:
        """Raise ValueError if the remembered batch had NaN, infinite values or no pair."""
        if torch.compiler.is_compiling():
            return
        pending, self._pending = self._pending, None
        if pending is None:
            return
        pending.event.synchronize()
        value, *_, num_counted = pending.facts.tolist()
        try:
            if value != value or abs(value) == float("inf"):
                check_embeddings(pending.images, pending.texts)
            if not num_counted:
                raise ValueError(NO_PAIR)
        except ValueError as error:
            raise ValueError(f"in the batch before this one: {error}") from None

    def __getstate__(self) -> dict[str, Any]:
        """Drop the pending batch in copies and pickles of a loss."""
        return {"_pending": None}
