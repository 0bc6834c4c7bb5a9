"""Families of pretrained dual encoders that `dual` wraps, and their differences."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Part = Literal["image", "text", "projection", "temperature"]

PROJECTIONS = ("visual_projection.", "text_projection.", "vision_model.head.", "text_model.head.")
TEMPERATURES = ("logit_scale", "logit_bias", "temperature")


@dataclass(frozen=True)
class Family:
    """Properties of one `model_type` of transformers."""

    fixed_captions: bool = False
    """Whether captions are padded to a fixed length, with padding that is read like any token."""
    unused_positions: int = 0
    """Number of unused rows at the start of the text tower's table of positions."""


FAMILIES = {
    "align": Family(),
    "altclip": Family(unused_positions=2),
    "chinese_clip": Family(),
    "clip": Family(),
    "metaclip_2": Family(),
    "siglip": Family(fixed_captions=True),
    "siglip2": Family(fixed_captions=True),
}


def family_of(config: Any, name: str | Path) -> Family:
    """Find the family of a transformers configuration; reject other models."""
    if config.model_type not in FAMILIES:
        raise ValueError(
            f"{name} is a model of type {config.model_type}, not a dual encoder of images and "
            f"texts; use one of {', '.join(FAMILIES)}"
        )
    return FAMILIES[config.model_type]


def embedding_width(config: Any) -> int:
    """Width of the common space."""
    width = getattr(config, "projection_dim", None) or config.text_config.projection_size
    return int(width)


def longest_caption(config: Any) -> int:
    """Number of tokens for which the text tower has positions."""
    unused = FAMILIES[config.model_type].unused_positions
    return int(config.text_config.max_position_embeddings) - unused


def part_of(parameter: str) -> Part:
    """Find the part of a network that a parameter belongs to, by its name.

    SigLIP's projections are the heads of its towers.
    """
    if parameter in TEMPERATURES:
        return "temperature"
    if parameter.startswith(PROJECTIONS):
        return "projection"
    return "image" if parameter.startswith("vision_model.") else "text"
