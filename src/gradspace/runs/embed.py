"""Embeddings of your own sentences, pictures and passages."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor

from gradspace.commands import EXAMPLE_MODEL
from gradspace.data.inputs import PassageReading, PictureReading
from gradspace.runs.system import System


@torch.inference_mode()
def embed_captions(system: System, captions: Sequence[str]) -> Tensor:
    """Embed your own sentences as unit vectors, [captions, width]."""
    tokens, lengths = system.encode(captions)
    return system.model.embed_texts(tokens.to(system.device), lengths).float().cpu()


def note_on_words(system: System, caption: str) -> str:
    """Name the words of a sentence that the model has never seen; empty if there are none."""
    unknown = system.unknown_words(caption)
    return f"the model has never seen {', '.join(map(repr, unknown))}" if unknown else ""


@torch.inference_mode()
def embed_pictures(system: System, pictures: Sequence[Image.Image]) -> Tensor:
    """Embed your own pictures as unit vectors, [pictures, width]."""
    pixels = read_pictures(system, pictures)
    return system.model.embed_images(pixels.to(system.device)).float().cpu()


def read_pictures(system: System, pictures: Sequence[Image.Image]) -> Tensor:
    """Convert your own pictures to the model's input, [pictures, 3, height, width]."""
    if not isinstance(system.reading, PictureReading):
        what = "passages" if system.reading.kind == "passages" else "precomputed features"
        raise ValueError(
            f"this run reads {what}, not pictures: for pictures of your own use any CLIP or "
            f"SigLIP, by its folder or hub name, such as {EXAMPLE_MODEL}, or a run that was "
            "trained with model.backbone"
        )
    return system.reading.prepare(pictures)


@torch.inference_mode()
def embed_passages(system: System, passages: Sequence[str]) -> Tensor:
    """Embed your own passages as unit vectors, [passages, width]; questions are captions."""
    if not isinstance(system.reading, PassageReading):
        raise ValueError("this run reads images, not passages: train text-dual to embed passages")
    return (
        system.model.embed_images(system.reading.prepare(passages).to(system.device)).float().cpu()
    )
