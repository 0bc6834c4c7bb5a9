"""One case of a benchmark, its measurement, and the embeddings that all cases share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import normalize


@dataclass(frozen=True)
class Case:
    """A case to measure: `who` does `what` with `images`, each with `captions` texts."""

    suite: str
    who: str
    what: str
    images: int
    captions: int
    width: int


Run = Callable[[], dict[str, float]]
"""Function to time, which returns numbers that others can be checked against."""


@dataclass(frozen=True)
class Call:
    """A case, ready to be timed."""

    run: Run
    share: float = 1.0
    """Share of the queries that `run` covers; its time is extrapolated to all of them."""
    fixed: Run | None = None
    """Part of `run` that does not depend on the share, and is not extrapolated."""

    def whole(self, seconds: float, fixed: float) -> float:
        """Extrapolate the time of all queries from that of the share and of the fixed part."""
        return fixed + (seconds - fixed) / self.share


@dataclass(frozen=True)
class Measurement:
    """Seconds and peak memory of a run, or the reason why there are none."""

    seconds: float | None = None
    """Median of the runs."""
    fastest: float | None = None
    megabytes: float | None = None
    share: float = 1.0
    failure: str | None = None
    numbers: dict[str, float] = field(default_factory=dict)

    @property
    def unsteady(self) -> bool:
        """Whether something else seems to have run: threads that share a core are far slower."""
        return bool(self.seconds and self.fastest and self.seconds > 1.3 * self.fastest)


@dataclass(frozen=True)
class Batch:
    """Embeddings of length 1, and ids, of which equal ones belong together."""

    images: Tensor
    texts: Tensor
    image_ids: Tensor
    text_ids: Tensor


def make_batch(case: Case, cosine: float, device: str = "cpu") -> Batch:
    """Make random images, and texts whose similarity to their image is about `cosine`."""
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
    """Make a bfloat16 batch whose embeddings require gradients, with ids on the same device."""
    b = make_batch(case, cosine, device)
    images, texts = (x.bfloat16().requires_grad_() for x in (b.images, b.texts))
    return Batch(images, texts, b.image_ids, b.text_ids)
