"""What was wrong with the last batch of a GPU, said when the next one comes.

Asking a GPU whether a batch holds NaN would wait for it. Its answer is copied while it works on,
and read one batch later, when it has long been there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradspace.checks import check_embeddings
from gradspace.execution.batch_pairs import NO_PAIR


class _Pending(NamedTuple):
    facts: Tensor
    """On the CPU, once the event has come: a value, ..., and how many queries have a positive."""
    event: torch.cuda.Event
    images: Tensor
    texts: Tensor


class LastBatch:
    """Remembers one batch."""

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
        """Where nobody found out more: the sum of all embeddings is NaN if one of them is."""
        if images.is_cuda and not torch.compiler.is_compiling():
            total = images.detach().sum(dtype=torch.float32) + texts.detach().sum()
            self.remember(torch.stack([total, torch.ones_like(total)]), images, texts)

    def check(self) -> None:
        """Raise ValueError if something was wrong."""
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
        """Copies and pickles of a loss start anew."""
        return {"_pending": None}
