"""A searcher in memory: words are random directions, pictures the names of their colours."""

from __future__ import annotations

import hashlib
import io
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from gradspace.indexes.contract import Hit, Item, Kind, Vectors
from gradspace.indexes.searcher import Query, Searcher
from gradspace.indexes.where import Condition, Value, all_met, check_fields
from gradspace.runs.explain import Explanation

WIDTH = 64
COLOURS = {
    "red": (196, 67, 61),
    "orange": (222, 138, 58),
    "green": (86, 143, 92),
    "blue": (66, 112, 176),
    "violet": (126, 92, 164),
    "grey": (140, 142, 148),
}
SHAPES = ("circle", "square", "triangle", "ring")
KNOWN = {"a", *COLOURS, *SHAPES}
HOSTILE = "<img src=x onerror=alert(1)> a red <b>circle</b> at night"


class MemoryEngine:
    """All vectors in one array."""

    def __init__(self, items: Sequence[Item], vectors: NDArray[np.float32]) -> None:
        self.items, self.vectors = list(items), vectors
        self.searches: list[int] = []

    def __len__(self) -> int:
        return len(self.items)

    def put(self, items: Sequence[Item], vectors: Vectors) -> None:
        raise NotImplementedError

    def remove(self, keys: Sequence[str]) -> None:
        raise NotImplementedError

    def fingerprints(self) -> dict[str, str]:
        return {item.key: item.fingerprint for item in self.items}

    def fields(self) -> set[str]:
        return {name for item in self.items for name in item.metadata}

    def get(self, keys: Sequence[str]) -> list[tuple[Item, NDArray[np.float32]] | None]:
        rows = {item.key: row for row, item in enumerate(self.items)}
        return [
            (self.items[rows[key]], self.vectors[rows[key]]) if key in rows else None
            for key in keys
        ]

    def search(
        self, queries: NDArray[np.float32], k: int, kind: Kind, where: Sequence[Condition] = ()
    ) -> list[list[Hit]]:
        self.searches.append(len(queries))
        rows = [
            row
            for row, item in enumerate(self.items)
            if item.kind == kind and all_met(where, item.metadata)
        ]
        scores = queries @ self.vectors[rows].T
        best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return [
            [Hit(self.items[rows[j]], float(own[j])) for j in order]
            for own, order in zip(scores, best, strict=True)
        ]

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class FakeIndex:
    name: str
    engine: MemoryEngine
    kinds: tuple[Kind, ...]
    pictures: dict[str, Image.Image]
    record: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(width=WIDTH))

    def find(
        self, queries: NDArray[np.float32], k: int, kind: Kind, where: Sequence[Condition] = ()
    ) -> list[list[Hit]]:
        found = self.engine.search(queries, k, kind, where)
        if not any(found):
            check_fields(where, self.engine.fields(), self.name)
        return found

    def thumbnail(self, key: str) -> bytes | None:
        if key not in self.pictures:
            return None
        out = io.BytesIO()
        self.pictures[key].resize((240, 180)).save(out, "JPEG")
        return out.getvalue()

    def picture(self, key: str) -> Image.Image:
        if key.endswith("broken.jpg"):
            raise ValueError(f"image {key!r} in /home/somebody/photos is broken: truncated")
        return self.pictures[key]


@dataclass(frozen=True, eq=False)
class FakeSearcher:
    """What a real one does, without a model.

    A batch takes `slow` seconds, and longer where somebody closes the `gate`.
    """

    index: FakeIndex
    salt: str = ""
    reads_pictures: bool = True
    explains: bool = True
    slow: float = 0.0
    batches: list[int] = field(default_factory=list)
    entered: threading.Event = field(default_factory=threading.Event)
    gate: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    def unknown_words(self, query: Query) -> list[str]:
        return [word for word in dict.fromkeys(query.text.split()) if word not in KNOWN]

    def embed(self, queries: Sequence[Query]) -> NDArray[np.float32]:
        self.batches.append(len(queries))
        self.entered.set()
        time.sleep(self.slow)
        assert self.gate.wait(20)
        return np.stack([self._vector(query) for query in queries])

    def _vector(self, query: Query) -> NDArray[np.float32]:
        if query.text == "fail":
            raise RuntimeError("out of memory")
        text = embed_text(query.text, self.salt) if query.text else None
        if query.picture is None:
            assert text is not None
            return text
        seen = embed_text(colour_of(query.picture), self.salt)
        if text is None:
            return seen
        return unit(query.picture_weight * seen + (1 - query.picture_weight) * text)

    def search(
        self,
        queries: Sequence[Query],
        k: int = 10,
        kind: Kind = "image",
        where: Sequence[Condition] = (),
    ) -> list[list[Hit]]:
        answers = []
        for query in queries:
            found = self.index.engine.get([query.like])[0] if query.like else None
            vector = self.embed([query])[0] if found is None else found[1]
            hits = self.index.find(vector[None], k + 1, kind, where)[0]
            answers.append([hit for hit in hits if hit.item.key != query.like][:k])
        return answers

    def explain(self, key: str, text: str) -> Explanation | None:
        found = self.index.engine.get([key])[0]
        if found is None or found[0].kind == "caption":
            return None
        words = text.split()
        values = [(word, float(embed_text(word, self.salt) @ found[1])) for word in words]
        y, x = np.mgrid[0:7, 0:7]
        regions = np.exp(-((x - 3) ** 2 + (y - 3) ** 2) / 5)
        return Explanation(
            score=1.0,
            words=values,
            rest=0.0,
            regions=regions,
            attention=np.stack([np.roll(regions, n, 1) for n in range(len(words))]),
            box=(0.125, 0.0, 0.875, 1.0),
        )


def unit(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    return vector / np.linalg.norm(vector)


def embed_text(text: str, salt: str = "") -> NDArray[np.float32]:
    """The sum of a random direction for every word."""
    total = np.zeros(WIDTH, np.float32)
    for word in text.lower().split():
        seed = int.from_bytes(hashlib.sha256((salt + word).encode()).digest()[:8], "big")
        total += np.random.default_rng(seed).standard_normal(WIDTH, np.float32)
    return unit(total)


def colour_of(picture: Image.Image) -> str:
    pixel = np.asarray(picture.resize((1, 1), Image.Resampling.BOX))[0, 0].astype(float)
    return min(COLOURS, key=lambda name: float(np.abs(pixel - COLOURS[name]).sum()))


def draw(colour: str, shape: str, size: int = 400) -> Image.Image:
    shade = COLOURS[colour]
    image = Image.new("RGB", (size * 4 // 3, size), tuple(min(255, 120 + c // 2) for c in shade))
    pen = ImageDraw.Draw(image)
    left, top, side = size // 3, size // 6, size * 2 // 3
    box = (left, top, left + side, top + side)
    if shape == "circle":
        pen.ellipse(box, fill=shade)
    elif shape == "ring":
        pen.ellipse(box, outline=shade, width=size // 10)
    elif shape == "square":
        pen.rectangle(box, fill=shade)
    else:
        points = [(left + side // 2, top), (left + side, top + side), (left, top + side)]
        pen.polygon(points, fill=shade)
    return image


def make_searcher(
    name: str = "shapes",
    salt: str = "",
    slow: float = 0.0,
    reads_pictures: bool = True,
    explains: bool = True,
    leave_out: str = "",
    plain: bool = False,
) -> Searcher:
    """Pictures of shapes in two folders, a caption for each, and one that would like to be HTML.

    Those that are `plain` have no metadata, and images no captions.
    """
    items: list[Item] = []
    pictures: dict[str, Image.Image] = {}
    for number, (colour, shape) in enumerate((c, s) for c in COLOURS for s in SHAPES):
        if colour == leave_out:
            continue
        folder = "flat" if shape in ("circle", "square") else "edges & more"
        key = f"{folder}/{colour} {shape} #{number}.jpg"
        text = f"a {colour} {shape}"
        metadata: dict[str, Value] = {"folder": folder, "year": 2000 + number, "colour": colour}
        if plain:
            metadata = {"width": 400}
        pictures[key] = draw(colour, shape)
        items.append(Item(key, "image", text, key, "1", metadata))
        items.append(Item(f"{key}:0", "caption", text, key, "1", metadata))
    first = items[0]
    items[0] = Item(first.key, "image", f"{first.text}\n{HOSTILE}", first.key, "1", first.metadata)
    items[1] = Item(f"{first.key}:0", "caption", HOSTILE, first.key, "1", first.metadata)
    words = [f"a {' '.join(i.key.split('/')[1].split()[:2])}" for i in items if i.kind == "image"]
    vectors = np.stack([embed_text(text, salt) for text in words for _ in (0, 1)])
    index = FakeIndex(name, MemoryEngine(items, vectors), ("image", "caption"), pictures)
    if plain:
        index.engine.items = [replace(item, text="") for item in items]
    return cast(Searcher, FakeSearcher(index, salt, reads_pictures, explains, slow))


def as_bytes(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()
