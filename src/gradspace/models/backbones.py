"""Image backbones: any transformers vision network, as one vector per image or as a grid."""

from __future__ import annotations

import inspect
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from gradspace.models.hub import download_options
from gradspace.models.prepare.pictures import CentreCrop, RandomCrop, RandomPart, WholePicture
from gradspace.models.pretrained import Pretrained, place_of

PREPROCESSOR = "preprocessor_config.json"


@dataclass(frozen=True)
class Preprocessing:
    """Normalisation and size of pixels: (pixel / 255 - image_mean) / image_std, `size` a side."""

    image_mean: tuple[float, ...]
    image_std: tuple[float, ...]
    size: int


class Backbone(Pretrained):
    """Vision network from pixels to features: [n, width], or [n, regions, width] as a `grid`.

    ResNet, ViT, Swin, DINOv2 ..., or the vision tower of CLIP and SigLIP, from a folder or the hub.
    A grid is the last feature map of a CNN, or the patches of a transformer without its class
    token. A single vector is the network's pooled output, or its class token.

    Inputs: uint8 pixels, which are scaled and normalised here, or normalised floating point ones.

    Args:
        freeze_batch_norm: keep BatchNorm statistics in fine-tuning too, as VSE-infinity does.
        rate: learning rate relative to that of the rest of the model.
        pretrained: False builds the network without loading weights.
    """

    kind = "backbone"
    image_mean: Tensor
    image_std: Tensor

    def __init__(
        self,
        name: str | Path,
        *,
        grid: bool = False,
        fine_tune: bool = False,
        freeze_batch_norm: bool = False,
        rate: float = 1.0,
        pretrained: bool = True,
    ) -> None:
        super().__init__(name, "vision", rate=rate, pretrained=pretrained)
        self.grid = grid
        self.freeze_batch_norm = freeze_batch_norm
        self.preprocessing = load_preprocessing(name)
        if self.preprocessing is not None:
            for key in ("image_mean", "image_std"):
                values = torch.tensor(getattr(self.preprocessing, key)).view(-1, 1, 1)
                self.register_buffer(key, values, persistent=False)
        accepted = inspect.signature(self.network.forward).parameters
        any_size = "interpolate_pos_encoding"
        self._options = {any_size: True} if any_size in accepted else {}
        self.width = int(self.eval()(*self.example()).shape[-1])
        self.train().fine_tune(fine_tune)

    def forward(self, pixels: Tensor) -> Tensor:
        pixels = self._normalized(pixels)
        pixels = pixels.contiguous(memory_format=torch.channels_last)  # convolutions are faster
        with torch.set_grad_enabled(self.fine_tuned and torch.is_grad_enabled()):
            output = self.network(pixel_values=pixels, **self._options)
            if not self.grid and output.get("pooler_output") is not None:
                pooled: Tensor = output.pooler_output.flatten(1)
                return pooled
            return self._patches(output.last_hidden_state, pixels)

    def _normalized(self, pixels: Tensor) -> Tensor:
        if pixels.dim() != 4 or pixels.shape[1] != 3:
            raise ValueError(f"expected pixels [images, 3, h, w], got shape {list(pixels.shape)}")
        if pixels.dtype != torch.uint8:
            return pixels
        if self.preprocessing is None:
            raise ValueError(
                f"the backbone has no {PREPROCESSOR}, so uint8 pixels cannot be normalised: "
                "add the file, or pass normalised floating point pixels"
            )
        return (pixels.to(self.network.dtype) / 255 - self.image_mean) / self.image_std

    def _patches(self, hidden: Tensor, pixels: Tensor) -> Tensor:
        """Select the grid, or else the class token, or else the mean of the grid."""
        if hidden.dim() == 4:
            hidden, num_prefix = hidden.flatten(2).transpose(1, 2), 0
        else:
            num_prefix = max(0, hidden.shape[1] - self._num_patches(pixels))
        if self.grid:
            return hidden[:, num_prefix:]
        return hidden[:, 0] if num_prefix else hidden.mean(1)

    def _num_patches(self, pixels: Tensor) -> int:
        """Number of a transformer's patches; any further tokens are class or register tokens."""
        height, width = pair(self.network.config.patch_size)
        return (pixels.shape[2] // height) * (pixels.shape[3] // width)

    def example(self) -> tuple[Tensor, ...]:
        height, width = pair(getattr(self.network.config, "image_size", 64))
        network = self.network
        return (torch.zeros(1, 3, height, width, dtype=network.dtype, device=network.device),)

    def train(self, mode: bool = True) -> Backbone:
        super().train(mode)
        if self.freeze_batch_norm:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def save_config(self, folder: Path) -> None:
        super().save_config(folder)
        if self.preprocessing is not None:
            (folder / PREPROCESSOR).write_text(json.dumps(asdict(self.preprocessing)) + "\n")


def load_preprocessing(name: str | Path) -> Preprocessing | None:
    """Load the preprocessing described in a folder or hub repository; None if there is none."""
    from transformers.image_processing_base import ImageProcessingMixin

    try:
        place = place_of(name)
        given, _ = ImageProcessingMixin.get_image_processor_dict(place, **download_options(place))
    except OSError:
        return None
    mean, std = given.get("image_mean", (0.0,) * 3), given.get("image_std", (1.0,) * 3)
    rescale = 255 * given.get("rescale_factor", 1 / 255)
    size = given.get("crop_size") or given.get("size")
    if size is None:
        return None
    return Preprocessing(
        tuple(value / rescale for value in mean),
        tuple(value / rescale for value in std),
        int(size if isinstance(size, int) else size.get("height", size.get("shortest_edge"))),
    )


def pair(size: Any) -> tuple[int, int]:
    """Height and width from a transformers configuration, which may give one number for both."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def evaluation_crop(
    backbone: Backbone, *, size: int | None = None, whole: bool = False
) -> CentreCrop | WholePicture:
    """Crop of pictures for a backbone in evaluation; the short side is resized to 8/7 of the crop.

    `size` is the side of the crop, by default the backbone's own. `whole` squeezes the whole
    picture into the square instead.
    """
    size = _checked_size(backbone, size)
    return WholePicture(size=size) if whole else CentreCrop(size=size, resize=size * 8 // 7)


def training_crop(
    backbone: Backbone, *, size: int | None = None, whole: bool = False
) -> RandomCrop | RandomPart:
    """Random crop of pictures for a backbone in training."""
    size = _checked_size(backbone, size)
    return RandomPart(size=size) if whole else RandomCrop(size=size)


def _checked_size(backbone: Backbone, size: int | None) -> int:
    wanted = backbone.preprocessing
    if wanted is None:
        raise ValueError(
            "the backbone has no preprocessor_config.json, which defines the size and "
            "normalisation of its pixels: add the file"
        )
    return wanted.size if size is None else size
