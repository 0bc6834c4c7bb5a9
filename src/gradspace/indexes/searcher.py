"""Search by a sentence, a picture, both, or for items similar to one of the index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from gradspace.data.feature_files import FeatureFile
from gradspace.indexes.collection import is_text
from gradspace.indexes.contract import Hit, Kind
from gradspace.indexes.index import Index, model_digest, open_index
from gradspace.indexes.where import Condition
from gradspace.models import RetrievalModel
from gradspace.models.prepare.pictures import CentreCrop, WholePicture
from gradspace.runs.embed import embed_captions, embed_pictures
from gradspace.runs.explain import Explanation, explain_pair
from gradspace.runs.system import System, load_system

TRIED = "a picture"
"""Sentence by which a model is tested for explanations."""


@dataclass(frozen=True, eq=False)
class Query:
    """A sentence, a picture, both, or an item of the index to find similar ones."""

    text: str = ""
    picture: Image.Image | None = None
    like: str = ""
    """Key of an item, which is left out of the results."""
    picture_weight: float = 0.5
    """Weight of the picture relative to the sentence, if both are given; between 0 and 1."""


@dataclass(frozen=True)
class Searcher:
    """An index with the model of its vectors."""

    index: Index
    system: System
    explainer: System | None = None
    """Another model that explains results, such as SCAN, which has no vectors to search by."""

    @property
    def reads_pictures(self) -> bool:
        """Whether the model can embed your own pictures."""
        return self.system.reading.kind == "pictures"

    @cached_property
    def explains(self) -> bool:
        """Whether the model can explain scores, tried on one image."""
        model = (self.explainer or self.system).model
        if "image" not in self.index.kinds or type(model).explain is RetrievalModel.explain:
            return False
        [hits] = self.index.engine.search(self.embed([Query(TRIED)]), 1, "image")
        try:
            found = [self.explain(hit.item.key, TRIED) for hit in hits]
        except ValueError:  # for example because the pictures have been moved
            return False
        return any(each is not None and each.says_something for each in found)

    def unknown_words(self, query: Query) -> list[str]:
        """List words of a query that the model has never seen, and cannot distinguish."""
        return self.system.unknown_words(query.text)

    def search(
        self,
        queries: Sequence[Query],
        k: int = 10,
        kind: Kind = "image",
        where: Sequence[Condition] = (),
    ) -> list[list[Hit]]:
        """Find for every query the k items that score highest."""
        if kind not in self.index.kinds:
            raise ValueError(f"{self.index.name} has {' and '.join(self.index.kinds)}s only")
        if k < 1:
            raise ValueError(f"k is {k}; use at least 1")
        more = any(query.like for query in queries)
        found = self.index.find(self.embed(queries), k + more, kind, where)
        return [
            [hit for hit in hits if hit.item.key != query.like][:k]
            for query, hits in zip(queries, found, strict=True)
        ]

    def embed(self, queries: Sequence[Query]) -> NDArray[np.float32]:
        """Compute unit vectors [queries, width]: all sentences in one batch, and all pictures."""
        vectors = np.zeros((len(queries), self.index.record.width), np.float32)
        texts = [i for i, query in enumerate(queries) if query.text.strip()]
        pictures = [i for i, query in enumerate(queries) if query.picture is not None]
        liked = [i for i, query in enumerate(queries) if query.like]
        _check_queries(queries, {*texts, *pictures, *liked})
        if texts:
            found = embed_captions(self.system, [queries[i].text for i in texts]).numpy()
            vectors[texts] += _weighted(found, [_text_weight(queries[i]) for i in texts])
        if pictures:
            given = [p for i in pictures if (p := queries[i].picture) is not None]
            found = embed_pictures(self.system, given).numpy()
            vectors[pictures] += _weighted(found, [1 - _text_weight(queries[i]) for i in pictures])
        if liked:
            vectors[liked] += self._vectors_of([queries[i].like for i in liked])
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit: NDArray[np.float32] = vectors / np.maximum(lengths, 1e-12)
        return unit

    def explain(self, key: str, text: str) -> Explanation | None:
        """Explain by words and regions why an image fits a sentence; None if unknown."""
        [found] = self.index.engine.get([key])
        if found is None:
            raise KeyError(key)
        system = self.explainer or self.system
        if system.reading.kind == "pictures":
            return explain_pair(system, self.index.picture(key), text)
        collection = self.index.collection
        features, place = collection.split.features, collection.image(found[0].image)
        if features is None:
            raise ValueError("the model that explains reads features, and the index is of pictures")
        written = features if isinstance(features, FeatureFile) else None
        grid = written.grid if written else None
        given = torch.from_numpy(features.load(place))
        wanted, has = system.feature_shape or (), tuple(given.shape)
        if (len(wanted), wanted[-1:]) != (len(has), has[-1:]):  # the number of regions may differ
            raise ValueError(
                f"the model that explains reads features of shape {list(wanted)}, and those of "
                f"the index have {list(has)}"
            )
        explanation = explain_pair(system, given, text, grid=grid)
        if explanation is None or not written or grid is None or collection.split.images is None:
            return explanation
        read = WholePicture() if written.whole else CentreCrop()  # by `gradspace data features`
        return replace(explanation, box=read.box(self.index.picture(key).size))

    def _vectors_of(self, keys: Sequence[str]) -> NDArray[np.float32]:
        vectors = []
        for key, found in zip(keys, self.index.engine.get(keys), strict=True):
            if found is None:
                raise ValueError(f"there is no item {key!r} in {self.index.name}")
            vectors.append(found[1])
        return np.stack(vectors)


def open_searcher(
    folder: Path, device: torch.device | None = None, explainer: Path | None = None
) -> Searcher:
    """Open an index with its model, which must still be the one that made the vectors.

    `explainer` is another run, on the same data, that explains results.
    """
    index = open_index(folder)
    model = Path(index.record.model)
    try:
        same = model_digest(model) == index.record.digest
    except FileNotFoundError as error:
        raise ValueError(
            f"the model of {folder} is missing at {model}: put it back, or index again with "
            "its new path, which changes nothing else"
        ) from error
    if not same:
        raise ValueError(
            f"{model} is not the model that {folder} was made with: index again into a new folder"
        )
    explaining = None if explainer is None else load_system(explainer, device)
    return Searcher(index, load_system(model, device), explaining)


def _check_queries(queries: Sequence[Query], given: set[int]) -> None:
    for number, query in enumerate(queries):
        if number not in given:
            raise ValueError("give a sentence, a picture, or an item to find similar ones")
        for given_text in (query.text, query.like):
            if not is_text(given_text):
                raise ValueError(f"the query {given_text!r} is not valid UTF-8")
        if not 0 <= query.picture_weight <= 1:
            raise ValueError(f"picture_weight is {query.picture_weight}; use 0 to 1")


def _text_weight(query: Query) -> float:
    """Return the weight of a query's sentence."""
    if query.picture is None:
        return 1.0
    return 1 - query.picture_weight if query.text.strip() else 0.0


def _weighted(vectors: NDArray[np.float32], weights: Sequence[float]) -> NDArray[np.float32]:
    return vectors * np.array(weights, np.float32)[:, None]
