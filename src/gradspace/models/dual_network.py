"""A transformers dual encoder inside a model: both towers, their inputs, and partial training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradspace.models.backbones import pair
from gradspace.models.families import embedding_width, family_of, longest_caption, part_of
from gradspace.models.pooling import length_mask
from gradspace.models.prepare.image_processor import ImageProcessor, without_shape
from gradspace.models.prepare.tokenizer import Tokenizer
from gradspace.models.pretrained import Pretrained, load_config

TOWERS = {"image": "vision_model", "text": "text_model"}


class DualNetwork(Pretrained):
    """CLIP, SigLIP, ALIGN ... from a folder or the hub: projected features of images and texts.

    Modules that are not trained stay in evaluation mode.
    """

    kind = "pretrained"

    def __init__(self, name: str | Path, *, pretrained: bool = True) -> None:
        super().__init__(name, "both", rate=1.0, pretrained=pretrained)
        self.fixed_captions = family_of(self.network.config, name).fixed_captions
        self.processor = ImageProcessor(name)
        self._check_size(name)
        self.width = embedding_width(self.network.config)

    def images(self, pixels: Tensor) -> Tensor:
        """Compute image features, [n, width], from the output of the image processor."""
        if tuple(pixels.shape[1:]) != self.processor.shape:
            expected = ["images", *self.processor.shape]
            raise ValueError(f"expected pixels of shape {expected}, got {list(pixels.shape)}")
        if not pixels.is_floating_point():
            raise ValueError(f"expected normalised floating point pixels, got {pixels.dtype}")
        pixels = pixels.to(self.network.dtype)
        if pixels.dim() == 4:
            return _pooled(self.network.get_image_features(pixel_values=pixels))
        patches, shapes = without_shape(pixels)
        mask = length_mask(shapes.prod(1), patches.shape[1])
        return _pooled(
            self.network.get_image_features(
                pixel_values=patches, pixel_attention_mask=mask.int(), spatial_shapes=shapes
            )
        )

    def texts(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Compute text features, [m, width], from tokens [m, words] and their lengths [m]."""
        if not self.fixed_captions:
            mask = length_mask(lengths.to(tokens.device), tokens.shape[1]).long()
            return _pooled(self.network.get_text_features(input_ids=tokens, attention_mask=mask))
        length = int(lengths.max())
        if (lengths != length).any():
            raise ValueError(
                f"captions have {int(lengths.min())} to {length} tokens, but this network needs "
                "all captions padded to the same length, as `dual_tokenizer` does"
            )
        return _pooled(self.network.get_text_features(input_ids=tokens[:, :length]))

    def forward(self, pixels: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Compute image and text features in one tensor, [n + m, width]."""
        return torch.cat([self.images(pixels), self.texts(tokens, lengths)])

    def example(self) -> tuple[Tensor, ...]:
        device, shape = self.network.device, self.processor.shape
        pixels = torch.zeros(1, *shape, device=device)
        if len(shape) == 2:
            pixels[:, 0, :2] = 1
        return pixels, torch.zeros(1, 2, dtype=torch.long, device=device), torch.tensor([2])

    def towers(self) -> list[nn.Module]:
        return [self.network.get_submodule(name) for name in TOWERS.values()]

    def train_only(self, chosen: Callable[[str], bool]) -> None:
        """Train only the parameters with chosen names, among those that the output depends on."""
        self.fine_tune(True)
        for name, parameter in self.network.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and chosen(name))
        self.train(self.training)

    def last_layers(self, count: int) -> Callable[[str], bool]:
        """Select the parameters in the last layers of each tower, and those after them."""
        chosen: set[str] = set()
        for side, tower in TOWERS.items():
            chosen |= _after(self.network.get_submodule(tower), tower, side, count)
        return lambda name: name in chosen or part_of(name) == "projection"

    def train(self, mode: bool = True) -> DualNetwork:
        super().train(mode)
        _set_mode(self.network, mode and self.fine_tuned)
        return self

    def save_config(self, folder: Path) -> None:
        super().save_config(folder)
        self.processor.save(folder)

    def _check_size(self, name: str | Path) -> None:
        """Check that the image processor's output fits the network's table of positions."""
        vision, shape = self.network.config.vision_config, self.processor.shape
        patch = getattr(vision, "patch_size", None)
        if patch is None:
            return
        height, width = pair(patch)
        patches = shape[0], 3 * height * width
        wanted = (3, *pair(vision.image_size)) if len(shape) == 3 else patches
        if shape != wanted:
            raise ValueError(
                f"{name}: preprocessor_config.json makes pictures of shape {list(shape)}, but the "
                f"network takes {list(wanted)}"
            )


def dual_tokenizer(name: str | Path, config_from: str | Path | None = None) -> Tokenizer:
    """Load a dual encoder's tokenizer, which truncates and pads captions for its text tower."""
    config = load_config(config_from or name, "both")
    fixed = family_of(config, name).fixed_captions
    return Tokenizer(name, longest=longest_caption(config), fixed=fixed)


def _pooled(output: Any) -> Tensor:
    """Pooled features of an output, which is the tensor itself in transformers before version 5."""
    pooled: Tensor = output if isinstance(output, Tensor) else output.pooler_output
    return pooled


def _after(tower: nn.Module, prefix: str, side: str, count: int) -> set[str]:
    """List a tower's parameters in its last `count` layers and after them, in network order."""
    lists = [(n, m) for n, m in tower.named_modules() if isinstance(m, nn.ModuleList)]
    name, layers = max(lists, key=lambda item: (len(item[1]), -item[0].count(".")))
    if count > len(layers):
        raise ValueError(
            f"train of dual is last-{count}, but the {side} tower has {len(layers)} layers: use all"
        )
    first = f"{name}.{len(layers) - count}."
    names = [n for n, _ in tower.named_parameters()]
    start = next(place for place, n in enumerate(names) if n.startswith(first))
    return {f"{prefix}.{n}" for n in names[start:]}


def _set_mode(module: nn.Module, mode: bool) -> None:
    """Put modules with trained parameters in training mode; those without any follow `mode`."""
    parameters = list(module.parameters())
    module.training = mode and (not parameters or any(p.requires_grad for p in parameters))
    for child in module.children():
        _set_mode(child, module.training)
