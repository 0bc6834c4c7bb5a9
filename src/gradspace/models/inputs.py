"""Inputs of a model on either side, as plain descriptions that a recipe can hold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from gradspace.data.dataset import RegionKind


@dataclass(frozen=True, kw_only=True)
class ImageInput:
    """Image input: precomputed features of a `shape`, pixels for a `backbone`, or `passages`.

    >>> ImageInput(shape=(36, 2048))
    ImageInput(shape=(36, 2048), regions='detector', backbone=None, fine_tune=False, ...)
    """

    shape: tuple[int, ...] | None = None
    """Shape of one image's features: (width,) or (regions, width)."""
    regions: RegionKind = "detector"
    """Kind of the features' regions; those of a backbone are always the cells of a grid."""
    backbone: str | Path | None = None
    """Folder or hub name of a transformers vision model; for `dual`, of the whole network."""
    fine_tune: bool = False
    """Whether to train the backbone."""
    pretrained: bool = True
    """Whether to load the backbone's weights; False if a checkpoint provides them later."""
    passages: bool = False
    """Whether images are replaced by texts, which are encoded as the text input says."""

    @property
    def is_grid(self) -> bool:
        return self.backbone is not None or self.regions == "grid"

    def __post_init__(self) -> None:
        if [self.shape is not None, self.backbone is not None, self.passages].count(True) != 1:
            raise ValueError(
                "an image input needs exactly one of shape (of features), backbone and passages"
            )
        if self.shape is not None and (len(self.shape) not in (1, 2) or min(self.shape) < 1):
            raise ValueError(
                f"features must be (width,) or (regions, width), got shape {self.shape}"
            )
        if self.fine_tune and self.backbone is None:
            raise ValueError("fine_tune needs a backbone, but features are precomputed: drop it")


@dataclass(frozen=True, kw_only=True)
class TextInput:
    """Text input: words of a vocabulary, for a GRU, or tokens of a transformers `encoder`."""

    vocabulary_size: int | None = None
    encoder: str | Path | None = None
    """Folder or hub name of a transformers text model; for `dual`, of the whole network."""
    fine_tune: bool = True
    pretrained: bool = True
    """Whether to load the encoder's weights; False if a checkpoint provides them later."""
    mask: int | None = None
    """Token of a masked word, if there is one."""
    pieces: tuple[int, ...] = ()
    """Tokens that continue the word before them."""

    def __post_init__(self) -> None:
        if (self.vocabulary_size is None) == (self.encoder is None):
            raise ValueError("a text input needs exactly one of vocabulary_size and encoder")
        if self.vocabulary_size is not None and self.vocabulary_size < 1:
            raise ValueError(f"vocabulary_size must be at least 1, got {self.vocabulary_size}")


class PrecomputedFeatures(nn.Module):
    """Passes precomputed features through, after checking their shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.width = shape[-1]

    def forward(self, features: Tensor) -> Tensor:
        if features.dim() != len(self.shape) + 1 or features.shape[-1] != self.width:
            raise ValueError(
                f"expected features of shape {['images', *self.shape]}, got {list(features.shape)}"
            )
        return features
