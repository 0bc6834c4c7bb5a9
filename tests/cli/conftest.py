"""The tiny CLIP and the photos that tests of indexes use."""

from indexes.conftest import model, photos

__all__ = ["model", "photos"]
