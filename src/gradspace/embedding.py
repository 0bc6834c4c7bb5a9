"""Embeddings: of whole splits, of one's own pictures and sentences, and on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from gradspace.checkpoint import load_checkpoint, save_checkpoint
from gradspace.data.batches import image_batches, text_batches
from gradspace.data.dataset import Split
from gradspace.data.loader import Loader
from gradspace.data.passages import PassageTokens
from gradspace.execution.tiles import EmbeddingScores
from gradspace.positives import Positives, match_ids
from gradspace.processes import gather_rows, rank, world_size
from gradspace.system import System

BATCH = 256
PICTURES = 32
"""Of a batch, where a network makes maps of them, which take much memory; divides BATCH."""

Progress = Callable[[int, int], None]
"""Called with how many items are done, and of how many."""


@dataclass(frozen=True)
class Embeddings:
    """Unit vectors of images and texts with their ids: equal ids belong together."""

    images: Tensor
    texts: Tensor
    image_ids: Tensor
    text_ids: Tensor
    image_names: Sequence[str]
    captions: Sequence[str]

    def scores(self) -> EmbeddingScores:
        return EmbeddingScores(self.images, self.texts)

    def block(self, images: Tensor, texts: Tensor) -> Tensor:
        """[images, texts]: the scores of chosen ones."""
        rows, columns = images.to(self.images.device), texts.to(self.texts.device)
        return self.images[rows].float() @ self.texts[columns].float().t()

    def positives(self) -> Positives:
        return match_ids(self.image_ids, self.text_ids)


@torch.inference_mode()
def embed_split(system: System, split: Split, progress: Progress | None = None) -> Embeddings:
    """Every image and every caption of a split, in order.

    Of several processes each embeds a share, and all get all.
    """
    was_training = system.model.training
    system.model.eval()
    (first, last), (first_text, last_text) = _share(split.image_names), _share(split.captions)
    total, done = last - first + last_text - first_text, 0
    images = [torch.zeros(0, system.model.width, device=system.device)]
    texts = [*images]
    for batch in images_to_embed(system, split, first, last):
        images.append(system.model.embed_images(batch.to(system.device)).float())
        done += len(batch)
        if progress:
            progress(done, total)
    for tokens, lengths in text_batches(
        split, system.encode, batch_size=BATCH, start=first_text, stop=last_text
    ):
        texts.append(system.model.embed_texts(tokens.to(system.device), lengths).float())
        done += len(tokens)
        if progress:
            progress(done, total)
    system.model.train(was_training)
    return Embeddings(
        images=gather_rows(torch.cat(images)),
        texts=gather_rows(torch.cat(texts)),
        image_ids=torch.arange(len(split.image_names)),
        text_ids=torch.from_numpy(split.image_of_caption),
        image_names=split.image_names,
        captions=split.captions,
    )


def images_to_embed(
    system: System, split: Split, start: int = 0, stop: int | None = None
) -> Loader[Tensor]:
    """What the model reads of images start .. stop - 1 of a split, in order."""
    return image_batches(
        split,
        batch_size=PICTURES if system.reads_pictures else BATCH,
        pixels=system.crop,
        start=start,
        stop=stop,
        num_workers=system.num_workers,
    )


def _share(items: Sequence[str]) -> tuple[int, int]:
    """First and last (not included) of the items that this process embeds: whole batches.

    Every batch is then the same for any number of processes, and so is every rounding.
    """
    num_batches = -(-len(items) // BATCH)
    first, last = (num_batches * number // world_size() for number in (rank(), rank() + 1))
    return first * BATCH, min(last * BATCH, len(items))


@torch.inference_mode()
def embed_captions(system: System, captions: Sequence[str]) -> Tensor:
    """Unit vectors of one's own sentences, [captions, width]."""
    tokens, lengths = system.encode(captions)
    return system.model.embed_texts(tokens.to(system.device), lengths).float().cpu()


@torch.inference_mode()
def embed_pictures(system: System, pictures: Sequence[Image.Image]) -> Tensor:
    """Unit vectors of one's own pictures, [pictures, width]."""
    pixels = read_pictures(system, pictures)
    return system.model.embed_images(pixels.to(system.device)).float().cpu()


def read_pictures(system: System, pictures: Sequence[Image.Image]) -> Tensor:
    """What the model reads of one's own pictures, [pictures, 3, height, width]."""
    if system.crop is None or isinstance(system.crop, PassageTokens):
        what = "passages" if system.crop else "precomputed features"
        raise ValueError(
            f"this run reads {what}, not pictures: train with model.backbone to embed "
            "pictures of your own"
        )
    return torch.stack([system.crop(picture) for picture in pictures])


@torch.inference_mode()
def embed_passages(system: System, passages: Sequence[str]) -> Tensor:
    """Unit vectors of one's own passages, [passages, width]; questions are captions."""
    if not isinstance(system.crop, PassageTokens):
        raise ValueError("this run reads images, not passages: train text-dual to embed passages")
    return system.model.embed_images(system.crop(passages).to(system.device)).float().cpu()


def average_similarity(members: Sequence[Embeddings]) -> EmbeddingScores:
    """Scores that are the mean of several models' scores, as VSRN is published.

    The inner product of concatenated vectors is the sum of the inner products.
    """
    images = torch.cat([member.images for member in members], 1) / len(members)
    return EmbeddingScores(images, torch.cat([member.texts for member in members], 1))


def save_embeddings(path: Path, embeddings: Embeddings) -> None:
    """One safetensors file with images, texts and ids; names and captions in its record."""
    tensors = {k: getattr(embeddings, k) for k in ("images", "texts", "image_ids", "text_ids")}
    names = {"image_names": list(embeddings.image_names), "captions": list(embeddings.captions)}
    save_checkpoint(path, tensors, names)


def load_embeddings(path: Path) -> Embeddings:
    tensors, record = load_checkpoint(path)
    values: dict[str, Any] = {**tensors, **record}
    try:
        return Embeddings(**values)
    except TypeError as error:
        raise ValueError(f"{path} is not a file of embeddings ({error})") from error
