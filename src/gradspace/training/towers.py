"""Options of large towers: compilation, and recomputation of activations."""

from __future__ import annotations

import importlib.util
import os
import shutil

import torch
from torch import nn

from gradspace.models import RetrievalModel
from gradspace.models.pretrained import Pretrained
from gradspace.runs.recipe_tables import TrainingRecipe


def prepare_towers(model: RetrievalModel, training: TrainingRecipe, device: torch.device) -> None:
    """Apply the recipe's options to the towers of a new model, or raise a ValueError."""
    parts = [part for part in model.modules() if isinstance(part, Pretrained)]
    if training.recompute_towers:
        for part in parts:
            _recompute(part)
    if training.compile_towers:
        _check_compiler(device)
        for part in parts:
            for tower in part.towers():
                for block in blocks_of(tower) or [tower]:
                    # Captions and last batches vary in length: use one graph for all of them.
                    block.compile(dynamic=True)


def blocks_of(tower: nn.Module) -> list[nn.Module]:
    """List the layers of a tower: the members of its outermost lists of modules."""
    found: list[nn.Module] = []
    for child in tower.children():
        found += child if isinstance(child, nn.ModuleList) else blocks_of(child)
    return found


def _recompute(part: Pretrained) -> None:
    """Keep only the inputs of every layer, and recompute it in the backward pass."""
    network = part.network
    if network.supports_gradient_checkpointing:
        enable = getattr(network, "activation_checkpointing_enable", None)  # transformers 5
        (enable or network.gradient_checkpointing_enable)({"use_reentrant": False})
    for tower in part.towers():
        if not any(getattr(module, "gradient_checkpointing", False) for module in tower.modules()):
            raise ValueError(
                "training.recompute_towers: transformers cannot recompute the layers of "
                f"{type(tower).__name__}; leave it out, and use training.chunk if memory "
                "is short"
            )


def _check_compiler(device: torch.device) -> None:
    if device.type == "cpu":
        there = shutil.which(os.environ.get("CXX", "g++")) is not None
        needs = "a C++ compiler such as g++"
    else:
        there, needs = importlib.util.find_spec("triton") is not None, "triton"
    if not there:
        raise ValueError(
            f"training.compile_towers needs {needs} on this machine: install it, or leave it out"
        )
