"""Search by sentence, by picture, by both, or for more of what was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gradspace.embedding import embed_captions, embed_pictures
from gradspace.search.contract import Hit, Kind
from gradspace.search.index import Index
from gradspace.search.where import Condition
from gradspace.system import System


@dataclass(frozen=True, eq=False)
class Query:
    """A sentence, a picture, both, or an item of the index to find more like it."""

    text: str = ""
    picture: Image.Image | None = None
    like: str = ""
    """The key of an item, which is not found itself."""
    picture_weight: float = 0.5
    """What the picture counts beside the sentence, where there are both; between 0 and 1."""


@dataclass(frozen=True)
class Searcher:
    """An index, and the model that its vectors are of."""

    index: Index
    system: System

    def search(
        self,
        queries: Sequence[Query],
        k: int = 10,
        kind: Kind = "image",
        where: Sequence[Condition] = (),
    ) -> list[list[Hit]]:
        """For every query the k items that score highest."""
        raise NotImplementedError

    def embed(self, queries: Sequence[Query]) -> NDArray[np.float32]:
        """Unit vectors [queries, width]: sentences in one batch, and pictures in one."""
        raise NotImplementedError
