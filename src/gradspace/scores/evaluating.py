"""The one way to switch a model into evaluation mode and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class HasModes(Protocol):
    """What torch's modules offer."""

    training: bool

    def train(self, mode: bool) -> Any: ...


@contextmanager
def evaluating(model: HasModes) -> Iterator[None]:
    """Evaluation mode inside, the mode of before afterwards, whatever happens in between."""
    was_training = model.training
    model.train(False)
    try:
        yield
    finally:
        model.train(was_training)
