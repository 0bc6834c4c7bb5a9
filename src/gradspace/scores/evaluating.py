"""Switching a model to evaluation mode and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class HasModes(Protocol):
    """A model with training and evaluation modes, as torch's modules have."""

    training: bool

    def train(self, mode: bool) -> Any: ...


@contextmanager
def evaluating(model: HasModes) -> Iterator[None]:
    """Put a model in evaluation mode; restore its previous mode afterwards, even on errors."""
    was_training = model.training
    model.train(False)
    try:
        yield
    finally:
        model.train(was_training)
