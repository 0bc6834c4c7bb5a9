"""What comes into a model on either side: plain descriptions, which a recipe can hold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from gradspace.data.dataset import RegionKind


@dataclass(frozen=True, kw_only=True)
class ImageInput:
    """Precomputed features of a `shape`, pixels that go through a `backbone`, or `passages`.

    >>> ImageInput(shape=(36, 2048))
    ImageInput(shape=(36, 2048), regions='detector', backbone=None, fine_tune=False, ...)
    """

    shape: tuple[int, ...] | None = None
    """Of one image's features: (width,) or (regions, width)."""
    regions: RegionKind = "detector"
    """What the regions of features are; those of a backbone are the cells of a grid."""
    backbone: str | Path | None = None
    """A transformers vision model, a folder or a name on the hub; for `dual` that of both sides."""
    fine_tune: bool = False
    """Train the backbone too."""
    pretrained: bool = True
    """False: the backbone's structure only, when a checkpoint will bring the weights."""
    passages: bool = False
    """Texts in the place of images, encoded as the text input says."""

    @property
    def is_grid(self) -> bool:
        return self.backbone is not None or self.regions == "grid"

    def __post_init__(self) -> None:
        if [self.shape is not None, self.backbone is not None, self.passages].count(True) != 1:
            raise ValueError(
                "an image input has a shape (of features), a backbone or passages, one of them"
            )
        if self.shape is not None and (len(self.shape) not in (1, 2) or min(self.shape) < 1):
            raise ValueError(f"features are (width,) or (regions, width), got shape {self.shape}")
        if self.fine_tune and self.backbone is None:
            raise ValueError("fine_tune needs a backbone: there are only precomputed features")


@dataclass(frozen=True, kw_only=True)
class TextInput:
    """Words of a vocabulary, for a GRU, or the tokens of a transformers text `encoder`."""

    vocabulary_size: int | None = None
    encoder: str | Path | None = None
    """A transformers text model, a folder or a name on the hub; for `dual` that of both sides."""
    fine_tune: bool = True
    pretrained: bool = True
    """False: the encoder's structure only, when a checkpoint will bring the weights."""
    mask: int | None = None
    """The token of a masked word, where there is one."""
    pieces: tuple[int, ...] = ()
    """Tokens that go on with the word before them."""

    def __post_init__(self) -> None:
        if (self.vocabulary_size is None) == (self.encoder is None):
            raise ValueError("a text input has a vocabulary_size or an encoder, one of them")
        if self.vocabulary_size is not None and self.vocabulary_size < 1:
            raise ValueError(f"vocabulary_size must be at least 1, got {self.vocabulary_size}")


class PrecomputedFeatures(nn.Module):
    """Precomputed features, handed through when they have the expected shape."""

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
