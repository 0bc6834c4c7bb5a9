"""Exact hardest negatives over a whole training set, both directions from the same scores.

For every image these are the captions of other images that score highest with it, and for every
caption the other images (AOQ: Chen et al., "Adaptive offline quintuplet loss for image-text
matching", 2020). Scores are computed tile by tile; only the highest of every query are kept, so
memory holds just the lists and one tile. Equal scores are listed in the order of their indices.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from gradspace.mining.lists import MinedLists, describe_source
from gradspace.mining.own import OwnPairs, check_enough, own_positives
from gradspace.mining.state import fingerprint, load_state, save_state, state_file
from gradspace.nearest.collecting import Top, can_collect, running_top
from gradspace.nearest.running import decode_keys, merge_keys
from gradspace.processes import gather_rows, rank, world_size
from gradspace.progress import Progress
from gradspace.scores.represented import Embeddings, Represented
from gradspace.scores.tiles import PairScores, blocks, tile_size

CPU_TILE = (512, 4096)
MERGED_AT_ONCE = 65_536
"""Number of captions whose lists processes exchange in one go."""
SECONDS_PER_SAVE = 30.0

Precision = Literal["float32", "bfloat16"]
TileShape = tuple[int, int]
"""Numbers of images and texts of a tile."""


@torch.no_grad()
def mine_exact(
    found: Represented,
    *,
    top_texts: int = 300,
    top_images: int = 60,
    source: Mapping[str, Any] | None = None,
    device: torch.device | None = None,
    precision: Precision = "float32",
    tile: TileShape | None = None,
    state: Path | None = None,
    save_every: float = SECONDS_PER_SAVE,
    progress: Progress | None = None,
) -> MinedLists:
    """Mine the `top_texts` hardest captions per image, and the `top_images` hardest per caption.

    Items with equal ids belong together and are never listed for each other, nor is a caption
    listed for an image that has an equal one. A model that scores pairs scores all of them.
    `source` becomes part of the record. `precision` is that of the products on CUDA; a CPU computes
    in float32. Several processes share the images, and each returns all lists, bit for bit those of
    a single process.

    `state` is a file to which progress is saved every `save_every` seconds: an interrupted mining,
    started again, resumes from there. The caller has to delete it.
    """
    work = _prepare(found, (top_texts, top_images), device, precision, tile)
    done = _start(work)
    inputs = _fingerprint(work) if state else ""
    if state and (saved := load_state(state_file(state), inputs)):
        done.restore(saved)
    last_save = time.monotonic()
    for rows in work.blocks_of_images(done.next_image):
        _mine_block(work, rows, done)
        finished = rows.stop == work.share.stop
        if state and (finished or time.monotonic() - last_save >= save_every):
            save_state(state_file(state), inputs, done.tensors(work.share))
            last_save = time.monotonic()
        if progress:
            progress(rows.stop - work.share.start, work.share.stop - work.share.start)
    method = {"search": "exact", "precision": precision}
    return _together(done, describe_source(found, method, source))


@dataclass(frozen=True, eq=False)
class _Work:
    """Inputs of a mining, and the part of it that this process does."""

    scored: _Products | PairScores
    own: OwnPairs
    lengths: tuple[int, int]
    """Lengths of the list of an image, and of that of a text."""
    tile: TileShape
    share: slice
    """Images of this process: whole tiles, so that rounding does not depend on the processes."""

    @property
    def device(self) -> torch.device:
        return self.scored.device

    @property
    def num_texts(self) -> int:
        return self.scored.shape[1]

    def blocks_of_images(self, start: int) -> list[slice]:
        rest = blocks(self.share.stop - start, self.tile[0])
        return [slice(start + rows.start, start + rows.stop) for rows in rest]


@dataclass(frozen=True, eq=False)
class _Products:
    """Scores that are inner products, in memory that is reused for every tile."""

    images: Tensor
    texts: Tensor
    memory: Iterator[Tensor]
    """Memory of each tile: always the same, or two in turn, one read while the other is written."""

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.images), len(self.texts)

    @property
    def device(self) -> torch.device:
        return self.images.device

    def tile(self, rows: slice, columns: slice) -> Tensor:
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        scores = next(self.memory)[: shape[0] * shape[1]].view(shape)
        left, right = self.images[rows], self.texts[columns].t()
        if left.dtype == torch.float32:
            torch.mm(left, right, out=scores)
        else:
            torch.mm(left, right, out_dtype=torch.float32, out=scores)
        return scores


def _prepare(
    found: Represented,
    lengths: tuple[int, int],
    device: torch.device | None,
    precision: Precision,
    tile: TileShape | None,
) -> _Work:
    device = device or (found.images.device if isinstance(found, Embeddings) else found.device)
    own = own_positives(found, device)
    check_enough(own, *lengths)
    products = isinstance(found, Embeddings)
    tile = tile or (tile_size(device) if products and device.type == "cuda" else CPU_TILE)
    _check_options(device, precision, tile)
    tile = (min(tile[0], own.num_queries), min(tile[1], own.num_candidates))
    return _Work(
        scored=_products(found, device, precision, tile)
        if isinstance(found, Embeddings)
        else found.scores(),
        own=OwnPairs(found, own, tile),
        lengths=lengths,
        tile=tile,
        share=_share(own.num_queries, tile[0]),
    )


def _products(
    embeddings: Embeddings, device: torch.device, precision: Precision, tile: TileShape
) -> _Products:
    dtype = getattr(torch, precision)
    num_tiles = 2 if can_collect(device) else 1
    return _Products(
        images=embeddings.images.to(device, dtype),
        texts=embeddings.texts.to(device, dtype),
        memory=cycle(torch.empty(num_tiles, tile[0] * tile[1], device=device).unbind()),
    )


def _check_options(device: torch.device, precision: str, tile: TileShape) -> None:
    if precision not in ("float32", "bfloat16"):
        raise ValueError(f"precision is {precision!r}; use 'float32' or 'bfloat16'")
    if precision == "bfloat16" and device.type != "cuda":
        raise ValueError(f"bfloat16 products need a CUDA device, got {device}; use float32")
    if min(tile) < 1:
        raise ValueError(f"tile is {tile}; use at least 1 image and 1 text")


def _share(num_images: int, height: int) -> slice:
    num_blocks = -(-num_images // height)
    first, last = (num_blocks * number // world_size() for number in (rank(), rank() + 1))
    return slice(first * height, min(last * height, num_images))


def _fingerprint(work: _Work) -> str:
    share = (work.share.start, work.share.stop)
    settings = {"lengths": work.lengths, "tile": work.tile, "share": share}
    scored = work.scored
    sides = (scored.images, scored.texts if isinstance(scored, _Products) else scored.words)
    return fingerprint((*sides, work.own.places, work.own.texts), settings)


# --- one block of images against all texts -------------------------------------------------------


@dataclass(eq=False)
class _Found:
    """Lists so far: complete for the images that are done, preliminary for all texts."""

    next_image: int
    texts_of_image: Tensor
    text_scores: Tensor
    of_texts: Top
    positive_scores: Tensor

    def tensors(self, share: slice) -> dict[str, Tensor]:
        done = self.next_image - share.start
        return {
            "next_image": torch.tensor(self.next_image),
            "texts_of_image": self.texts_of_image[:done],
            "text_scores": self.text_scores[:done],
            "keys": self.of_texts.keys,
            "positive_scores": self.positive_scores,
        }

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        self.next_image = int(saved["next_image"])
        done = len(saved["texts_of_image"])
        self.texts_of_image[:done] = saved["texts_of_image"]
        self.text_scores[:done] = saved["text_scores"]
        self.of_texts.restore(saved["keys"])
        self.positive_scores.copy_(saved["positive_scores"])


def _start(work: _Work) -> _Found:
    device, start = work.device, work.share.start
    shape = (work.share.stop - start, work.lengths[0])
    return _Found(
        next_image=start,
        texts_of_image=torch.empty(shape, dtype=torch.int32),
        text_scores=torch.empty(shape, dtype=torch.float16),
        of_texts=running_top(work.num_texts, work.lengths[1], device, start),
        positive_scores=torch.full((work.num_texts,), -torch.inf, device=device),
    )


def _mine_block(work: _Work, rows: slice, found: _Found) -> None:
    num_rows = rows.stop - rows.start
    of_images = running_top(num_rows, work.lengths[0], work.device)
    for columns in blocks(work.num_texts, work.tile[1]):
        tile = work.scored.tile(rows, columns)
        work.own.take_out(tile, rows, columns, found.positive_scores)
        of_images.take(slice(0, num_rows), tile, columns.start)
        found.of_texts.take(columns, tile.t(), rows.start)
    scores, texts = decode_keys(of_images.keys.sort(descending=True).values)
    at = slice(rows.start - work.share.start, rows.stop - work.share.start)
    found.texts_of_image[at] = texts.int()
    found.text_scores[at] = scores.half()
    found.next_image = rows.stop


# --- the shares of all processes -----------------------------------------------------------------


def _together(found: _Found, record: dict[str, Any]) -> MinedLists:
    """Join the lists of images, and merge those of texts."""
    keys = found.of_texts.keys
    images = torch.empty(keys.shape, dtype=torch.int32)
    image_scores = torch.empty(keys.shape, dtype=torch.float16)
    for texts in blocks(len(keys), MERGED_AT_ONCE):
        scores, indices = decode_keys(merge_keys(_from_all(keys[texts])))
        images[texts] = indices.int()
        image_scores[texts] = scores.half()
    positive = torch.stack(_from_all(found.positive_scores)).amax(0).cpu()
    return MinedLists(
        texts_of_image=gather_rows(found.texts_of_image).numpy(),
        text_scores=gather_rows(found.text_scores).numpy(),
        images_of_text=images.numpy(),
        image_scores=image_scores.numpy(),
        positive_scores=positive.where(positive.isfinite(), torch.nan).half().numpy(),
        record=record,
    )


def _from_all(rows: Tensor) -> list[Tensor]:
    """Collect these rows from every process."""
    all_rows = gather_rows(rows, [len(rows)] * world_size())
    return list(all_rows.view(world_size(), *rows.shape).unbind())
