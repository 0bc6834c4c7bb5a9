"""Pretrained dual encoders: CLIP, SigLIP and their relatives."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradspace.models.contract import LearnedScale, RetrievalModel, unit
from gradspace.models.dual_network import DualNetwork
from gradspace.models.families import Part, part_of
from gradspace.models.inputs import ImageInput, TextInput
from gradspace.models.lora import add_adapters, is_adapter, merged_weights
from gradspace.models.pretrained import quietly
from gradspace.models.registry import Count, model
from gradspace.parameters import Flag, NonNegative


@model(
    "dual",
    source="Radford et al. 2021, Zhai et al. 2023",
    pretrained=True,
    training={
        "epochs": 5,
        "batch_size": 128,
        "optimizer": "adamw",
        "learning_rate": 1e-5,
        "weight_decay": 0.01,
        "warm_up_steps": 100,
        "decay_epochs": [4],
        "clip": 1.0,
    },
)
class DualEncoder(RetrievalModel):
    """CLIP, SigLIP, ALIGN ... from a folder or the hub: unchanged, or fine-tuned.

    Both inputs name the same network; the text input tells whether it is trained. Images and texts
    are its projected features, scaled to length 1. The training defaults are common ones for
    fine-tuning; the publications train from scratch.

    Args:
        train: "all"; "last-2", the last two layers of both towers and everything after them;
            "projection", the layers into the common space; "lora", adapters beside frozen weights.
        image_rate, text_rate, projection_rate: learning rates relative to that of the training; 0
            freezes the part.
        learn_temperature: train the network's own scale (and bias) of scores, replacing those of
            nt-xent and siglip. Otherwise they are not trained.
        lora_rank, lora_alpha: rank and alpha of the adapters, W + alpha / rank * B A.
    """

    def __init__(
        self,
        image_input: ImageInput,
        text_input: TextInput,
        *,
        train: str = "all",
        image_rate: NonNegative = 1.0,
        text_rate: NonNegative = 1.0,
        projection_rate: NonNegative = 1.0,
        learn_temperature: Flag = False,
        lora_rank: Count = 8,
        lora_alpha: Count = 16,
    ) -> None:
        super().__init__()
        if image_input.backbone is None or image_input.backbone != text_input.encoder:
            raise ValueError(
                f"{self.name} is one network for images and texts: set model.pretrained"
            )
        self.dual = DualNetwork(image_input.backbone, pretrained=image_input.pretrained)
        self.width = self.dual.width
        self.learn_temperature = learn_temperature
        self.rates: dict[Part, float] = {
            "image": image_rate,
            "text": text_rate,
            "projection": projection_rate,
            "temperature": projection_rate,
        }
        if train == "lora":
            add_adapters(self.dual.network, rank=lora_rank, alpha=lora_alpha)
        if text_input.fine_tune:
            self._choose_trained(train)

    def embed_images(self, images: Tensor) -> Tensor:
        return unit(self.dual.images(images))

    def embed_texts(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        return unit(self.dual.texts(tokens, lengths))

    def learned_scale(self) -> LearnedScale | None:
        if not self.learn_temperature:
            return None
        network = self.dual.network
        if hasattr(network, "logit_scale"):
            scale = network.logit_scale.exp().squeeze()
        else:
            scale = 1 / network.temperature
        bias = getattr(network, "logit_bias", None)
        return LearnedScale(scale, None if bias is None else bias.squeeze())

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Group both towers, projections and temperature, each with its own learning rate."""
        groups: dict[Part, dict[str, Any]] = {}
        for name, parameter in self.dual.network.named_parameters():
            if parameter.requires_grad:
                part = part_of(name)
                groups.setdefault(part, {"name": part, "params": []})["params"].append(parameter)
        for part, group in groups.items():
            group["lr"] = self.rates[part] * learning_rate
        if "temperature" in groups:
            groups["temperature"]["weight_decay"] = 0.0
        return list(groups.values())

    def save_pretrained(self, folder: Path) -> None:
        """Save the network for transformers, with adapters merged, and its image processor."""
        from transformers import AutoModel

        network = AutoModel.from_config(self.dual.network.config, dtype=torch.float32)
        network.load_state_dict(merged_weights(self.dual.network))
        with quietly():
            network.save_pretrained(folder)
        self.dual.processor.save(folder)

    def _choose_trained(self, train: str) -> None:
        in_scope = self._scope(train)
        self.dual.train_only(lambda name: in_scope(name) and self.rates[part_of(name)] > 0)
        self._train_temperature()
        if not any(parameter.requires_grad for parameter in self.parameters()):
            raise ValueError(
                f"nothing is left to train with train={train!r}: set a rate that is not 0"
            )

    def _scope(self, train: str) -> Callable[[str], bool]:
        """Selector, by name, of the parameters that the recipe asks to train."""
        last = re.fullmatch(r"last-([1-9]\d*)", train)
        if last:
            return self.dual.last_layers(int(last[1]))
        scopes: dict[str, Callable[[str], bool]] = {
            "all": lambda name: True,
            "projection": lambda name: part_of(name) == "projection",
            "lora": is_adapter,
        }
        if train not in scopes:
            raise ValueError(
                f"train of {self.name} must be all, projection, lora, or last-N such as last-2, "
                f"got {train!r}"
            )
        return scopes[train]

    def _train_temperature(self) -> None:
        """Train or freeze the temperature, which `train` skips as no embedding depends on it."""
        for name, parameter in self.dual.network.named_parameters():
            if part_of(name) == "temperature":
                parameter.requires_grad_(self.learn_temperature and self.rates["temperature"] > 0)
