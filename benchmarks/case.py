"""One case of a benchmark, its measurement, and the embeddings that all cases share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import normalize


@dataclass(frozen=True)
class Case:
    """What is measured: `who` does `what` with `images`, each of them with `captions` texts."""

    suite: str
    who: str
    what: str
    images: int
    captions: int
    width: int


Run = Callable[[], dict[str, float]]
"""What is timed. It returns numbers that others can be checked against."""


@dataclass(frozen=True)
class Call:
    """A case, ready to be timed."""

    run: Run
    share: float = 1.0
    """The share of the queries that `run` goes through; its time is extrapolated to all of them."""
    fixed: Run | None = None
    """What `run` does whatever the share, and is not to be extrapolated."""

    def whole(self, seconds: float, fixed: float) -> float:
        """The time of all queries, from that of the share and of the fixed part."""
        return fixed + (seconds - fixed) / self.share


@dataclass(frozen=True)
class Measurement:
    """Seconds of one run and the peak memory it needed, or why there are none."""

    seconds: float | None = None
    """The median of the runs."""
    fastest: float | None = None
    megabytes: float | None = None
    share: float = 1.0
    failure: str | None = None
    numbers: dict[str, float] = field(default_factory=dict)

    @property
    def unsteady(self) -> bool:
        """Was something else running? Two threads that share a core take many times as long."""
        return bool(self.seconds and self.fastest and self.seconds > 1.3 * self.fastest)


@dataclass(frozen=True)
class Batch:
    """Embeddings of length 1; equal ids belong together."""

    images: Tensor
    texts: Tensor
    image_ids: Tensor
    text_ids: Tensor


def make_batch(case: Case, cosine: float, device: str = "cpu") -> Batch:
    """Random images; texts whose similarity to their image is about `cosine`."""
    generator = torch.Generator(device).manual_seed(0)

    def random(count: int) -> Tensor:
        shape = (count, case.width)
        return normalize(torch.randn(shape, generator=generator, device=device), dim=1)

    images = random(case.images)
    noise = random(case.images * case.captions)
    sine = (1 - cosine**2) ** 0.5
    image_ids = torch.arange(case.images, device=device)
    text_ids = image_ids.repeat_interleave(case.captions)
    texts = normalize(cosine * images[text_ids] + sine * noise, dim=1)
    return Batch(images, texts, image_ids, text_ids)


def bfloat16_batch(case: Case, cosine: float, device: str) -> Batch:
    """Leaves that gradients are asked for, with ids on the same device."""
    b = make_batch(case, cosine, device)
    images, texts = (x.bfloat16().requires_grad_() for x in (b.images, b.texts))
    return Batch(images, texts, b.image_ids, b.text_ids)
