"""Differentiable collectives, for a loss that is the sum of the parts of all processes.

Each process calls backward on its own part. A gradient that reaches a gathered or summed tensor is
itself summed over the processes, so that each process ends up with the derivative of the whole loss
with respect to its own embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor

from gradspace.objectives.statistics import LOG_ZERO
from gradspace.processes import gather_rows, rank, world_size


@dataclass(frozen=True)
class Items:
    """Embeddings and their ids; equal ids belong together."""

    embeddings: Tensor
    ids: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, part: slice) -> Items:
        return Items(self.embeddings[part], self.ids[part])

    def without_ids(self) -> Items:
        """Replace the ids by -1, so that no later item, paired by position, matches these."""
        return Items(self.embeddings, torch.full_like(self.ids, -1))


@dataclass(frozen=True)
class Processes:
    """Processes that share a loss: a single one, or torch's default group."""

    rank: int = 0
    number: int = 1

    @staticmethod
    def current() -> Processes:
        return Processes(rank(), world_size())

    def agree(self, kind: str, problem: str, device: torch.device) -> None:
        """Let all processes continue, or raise the same error in all of them."""
        codes = self.exchange([crc32(kind.encode()), bool(problem)], device)
        if any(failed for _, failed in codes):
            texts = self._exchange_text(problem, device)
            rank, text = next((rank, text) for rank, text in enumerate(texts) if text)
            raise ValueError(f"process {rank} of {self.number}: {text}")
        if len({code for code, _ in codes}) > 1:
            kinds = self._exchange_text(kind, device)
            other = next(rank for rank, text in enumerate(kinds) if text != kinds[0])
            raise ValueError(
                "all processes must use the same loss on embeddings of one width and type; process "
                f"0 has {kinds[0]}, process {other} has {kinds[other]}"
            )

    def _exchange_text(self, own: str, device: torch.device) -> list[str]:
        content = torch.tensor(list(own.encode()), dtype=torch.uint8, device=device)
        sizes = [size for (size,) in self.exchange([len(content)], device)]
        texts = bytes(gather_rows(content, sizes).tolist())
        ends = list(accumulate(sizes))
        return [texts[end - size : end].decode() for size, end in zip(sizes, ends, strict=True)]

    def exchange(self, own: Sequence[int], device: torch.device) -> list[list[int]]:
        """Gather a few integers from every process, in rank order."""
        if self.number == 1:
            return [list(own)]
        numbers = torch.tensor([list(own)], device=device)
        return gather_rows(numbers, [1] * self.number).tolist()

    def part(self, sizes: Sequence[int]) -> slice:
        """Slice of this process's items among those of all processes."""
        start = sum(sizes[: self.rank])
        return slice(start, start + sizes[self.rank])

    def share(self, count: int) -> slice:
        """Slice of `count` items, held by every process, that this process works on."""
        return slice(count * self.rank // self.number, count * (self.rank + 1) // self.number)

    def gather(self, own: Tensor, sizes: Sequence[int]) -> Tensor:
        """Concatenate the rows of all processes."""
        if self.number == 1:
            return own
        apply: Any = _Gather.apply
        gathered: Tensor = apply(_in_graph(own), sizes, self)
        return gathered

    @torch.no_grad()
    def gather_items(self, own: Items) -> Items:
        sizes = [size for (size,) in self.exchange([len(own)], own.ids.device)]
        return Items(gather_rows(own.embeddings, sizes), gather_rows(own.ids, sizes))

    def total(self, part: Tensor) -> Tensor:
        """Sum over the processes."""
        if self.number == 1:
            return part
        apply: Any = _Total.apply
        total: Tensor = apply(_in_graph(part))
        return total

    def log_sum_exp(self, parts: Sequence[Tensor], like: Tensor) -> Tensor:
        """Compute the log-sum-exp over the parts of all processes."""
        nothing = torch.full_like(like, LOG_ZERO, memory_format=torch.contiguous_format).detach()
        if self.number == 1 and len(parts) == 1:
            return parts[0]
        terms = torch.stack([nothing, *parts])
        highest = self.maximum(terms.detach().amax(0))
        return self.total((terms - highest).exp().sum(0)).log() + highest

    def maximum(self, part: Tensor) -> Tensor:
        if self.number > 1:
            part = part.contiguous()
            dist.all_reduce(part, dist.ReduceOp.MAX)
        return part

    def highest(self, part: Tensor) -> tuple[Tensor, Tensor]:
        """Maximum over the processes, and where this process is the first one to have it."""
        if self.number == 1:
            return part, torch.ones_like(part, dtype=torch.bool)
        best = self.maximum(part.clone())
        owner = torch.full_like(part, self.number, dtype=torch.long).masked_fill_(
            part == best, self.rank
        )
        dist.all_reduce(owner, dist.ReduceOp.MIN)
        return best, owner == self.rank


def _in_graph(part: Tensor) -> Tensor:
    """Attach a constant to the graph: backward must reach the collective in every process."""
    if torch.is_grad_enabled() and part.is_floating_point() and not part.requires_grad:
        return part.detach().requires_grad_()
    return part


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, sizes: Sequence[int], processes: Processes) -> Tensor:
        ctx.part = processes.part(sizes)
        return gather_rows(own, sizes)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient[ctx.part], None, None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        total = part.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient
