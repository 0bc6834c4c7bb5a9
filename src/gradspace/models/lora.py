"""Low-rank adapters through peft: a few trainable weights beside frozen ones (Hu et al. 2021)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gradspace.commands import pip_install

ADAPTED = ("q_proj", "v_proj", "query", "value")
"""Names of attention's query and value projections, adapted as published, in CLIP and BERT."""
ADAPTER = "default"


def add_adapters(network: Any, *, rank: int, alpha: int) -> None:
    """Insert adapters W + alpha / rank * B A into a transformers network; B starts at zero."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise ValueError(
            f'train = "lora" needs the package peft: {pip_install("gradspace[lora]")}'
        ) from None
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(ADAPTED))
    inject_adapter_in_model(config, network, ADAPTER)


def is_adapter(parameter: str) -> bool:
    """Whether a parameter of this name belongs to an adapter."""
    return ".lora_" in parameter


def merged_weights(network: Any) -> dict[str, Tensor]:
    """Merge adapters into the weights of an equivalent network without adapters."""
    weights = {
        name.replace(".base_layer.", "."): tensor.detach().clone()
        for name, tensor in network.state_dict().items()
        if not is_adapter(name)
    }
    for name, module in network.named_modules():
        if hasattr(module, "base_layer"):
            weights[f"{name}.weight"] += module.get_delta_weight(ADAPTER).detach()
    return weights
