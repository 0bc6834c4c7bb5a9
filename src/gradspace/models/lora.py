"""Low-rank adapters through peft: a few trainable weights beside frozen ones (Hu et al. 2021)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

ADAPTED = ("q_proj", "v_proj", "query", "value")
"""The query and value projections of attention, as published; named as in CLIP or as in BERT."""
ADAPTER = "default"


def add_adapters(network: Any, *, rank: int, alpha: int) -> None:
    """Put adapters W + alpha / rank * B A into a transformers network; B is zero at first."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise ValueError(
            'train = "lora" needs the package peft: pip install "gradspace[lora]"'
        ) from None
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(ADAPTED))
    inject_adapter_in_model(config, network, ADAPTER)


def is_adapter(parameter: str) -> bool:
    """Whether a parameter of this name belongs to an adapter."""
    return ".lora_" in parameter


def merged_weights(network: Any) -> dict[str, Tensor]:
    """The weights of the network without adapters that computes the same."""
    weights = {
        name.replace(".base_layer.", "."): tensor.detach().clone()
        for name, tensor in network.state_dict().items()
        if not is_adapter(name)
    }
    for name, module in network.named_modules():
        if hasattr(module, "base_layer"):
            weights[f"{name}.weight"] += module.get_delta_weight(ADAPTER).detach()
    return weights
