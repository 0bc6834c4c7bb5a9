"""A trained run or a pretrained model, ready to use: `gs.load`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from gradspace.models import PairScorer
from gradspace.processes import choose_device
from gradspace.runs.embed import embed_captions, embed_passages, embed_pictures, read_pictures
from gradspace.runs.explain import Explanation, explain_pair
from gradspace.runs.folder import Run
from gradspace.runs.represent import BATCH, PICTURES
from gradspace.runs.system import System, load_system

PictureLike = str | Path | Image.Image
"""A file, or a picture opened by Pillow."""


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """Embeds pictures and sentences, scores them with each other, and explains the scores."""

    system: System
    source: Path
    """The folder of the run, or the folder or hub name of the pretrained model."""

    def embed_images(self, images: Sequence[PictureLike] | Tensor) -> Tensor:
        """Embed pictures as unit vectors [images, width].

        A tensor is taken as the model's own input: features, for a run on features.
        """
        parts = [self._embed(images[i : i + PICTURES]) for i in range(0, len(images), PICTURES)]
        return torch.cat(parts) if parts else torch.zeros(0, self.system.model.width)

    def embed_texts(self, texts: Sequence[str]) -> Tensor:
        """Embed sentences as unit vectors [texts, width]."""
        parts = [
            embed_captions(self.system, texts[start : start + BATCH])
            for start in range(0, len(texts), BATCH)
        ]
        return torch.cat(parts) if parts else torch.zeros(0, self.system.model.width)

    def embed_passages(self, passages: Sequence[str]) -> Tensor:
        """Embed passages as unit vectors [passages, width], by a model that reads passages."""
        return embed_passages(self.system, passages)

    def score(self, images: Sequence[PictureLike] | Tensor, texts: Sequence[str]) -> Tensor:
        """Score how well each picture and each sentence belong together, [images, texts]."""
        model = self.system.model
        if not isinstance(model, PairScorer):
            return self.embed_images(images) @ self.embed_texts(texts).t()
        with torch.inference_mode():
            tokens, lengths = self.system.encode(texts)
            device = self.system.device
            parts = model.parts_of_images(self._read(images).to(device))
            words = model.parts_of_texts(tokens.to(device), lengths)
            return model.score(parts.float(), words.float(), lengths).cpu()

    def explain(
        self, image: PictureLike | Tensor, text: str, *, grid: tuple[int, int] | None = None
    ) -> Explanation | None:
        """Show which words and regions contribute to a score; None if the model cannot tell.

        `grid` gives the rows and columns of features that lie on a grid.
        """
        shown = image if isinstance(image, Tensor) else _open(image)
        return explain_pair(self.system, shown, text, grid=grid)

    @torch.inference_mode()
    def _embed(self, images: Sequence[PictureLike] | Tensor) -> Tensor:
        if not isinstance(images, Tensor):
            return embed_pictures(self.system, [_open(image) for image in images])
        return self.system.model.embed_images(images.to(self.system.device)).float().cpu()

    def _read(self, images: Sequence[PictureLike] | Tensor) -> Tensor:
        if isinstance(images, Tensor):
            return images
        return read_pictures(self.system, [_open(image) for image in images])


def load(source: str | Path | Run, device: str | None = None) -> LoadedModel:
    """Load the best weights of a run, or a CLIP-like model from its folder or the hub.

    Examples:
        >>> model = load("runs/first")  # doctest: +SKIP
        >>> model.score(["dog.jpg"], ["a dog", "a cat"])  # doctest: +SKIP
        tensor([[0.41, 0.12]])
    """
    place = source.folder if isinstance(source, Run) else Path(source)
    return LoadedModel(load_system(place, choose_device(device)), place)


def as_model(given: LoadedModel | str | Path | Run, device: str | None = None) -> LoadedModel:
    return given if isinstance(given, LoadedModel) else load(given, device)


def _open(picture: PictureLike) -> Image.Image:
    if isinstance(picture, Image.Image):
        return picture.convert("RGB")
    try:
        return Image.open(picture).convert("RGB")
    except (OSError, SyntaxError) as error:
        raise ValueError(f"{picture} is missing or not a picture ({error})") from error
