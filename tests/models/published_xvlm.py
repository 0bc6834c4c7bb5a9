"""Weights under the names that X-VLM publishes, made from a model with those of transformers."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

SWIN = {
    "embeddings.patch_embeddings.projection": "patch_embed.proj",
    "embeddings.norm": "patch_embed.norm",
    "layernorm": "norm",
}
BLOCK = {
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "attention.o_proj": "attn.proj",
    "attention.output.dense": "attn.proj",
    "attention.relative_position_bias": "attn",
    "attention.self": "attn",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
}


def from_bert(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"text_encoder.bert.{name}": value for name, value in state.items()}


def from_swin(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Queries, keys and values of a block are one matrix, in this order."""
    found: dict[str, Tensor] = {}
    thirds: dict[str, dict[str, Tensor]] = {}
    for name, value in state.items():
        module, _, kind = name.rpartition(".")
        block = re.match(r"encoder\.(layers\.\d+\.blocks\.\d+)\.(.*)", module)
        third = re.search(r"attention\.(?:self\.)?(query|key|value|q_proj|k_proj|v_proj)$", module)
        if block and third:
            thirds.setdefault(f"{block[1]}.attn.qkv.{kind}", {})[third[1][0]] = value
        elif block:
            found[f"{block[1]}.{BLOCK[block[2]]}.{kind}"] = value
        else:
            found[f"{SWIN.get(module, module.removeprefix('encoder.'))}.{kind}"] = value
    for name, parts in thirds.items():
        found[name] = torch.cat([parts["q"], parts["k"], parts["v"]])
    return {f"vision_encoder.{name}": value for name, value in found.items()}


def with_heads(hidden: int, image_width: int, width: int) -> dict[str, Tensor]:
    return {
        "temp": torch.tensor(0.05),
        "vision_proj.weight": torch.randn(width, image_width),
        "vision_proj.bias": torch.randn(width),
        "text_proj.weight": torch.randn(width, hidden),
        "text_proj.bias": torch.randn(width),
        "itm_head.0.weight": torch.randn(2 * hidden, hidden),
        "itm_head.0.bias": torch.randn(2 * hidden),
        "itm_head.1.weight": torch.randn(2 * hidden),
        "itm_head.1.bias": torch.randn(2 * hidden),
        "itm_head.3.weight": torch.randn(2, 2 * hidden),
        "itm_head.3.bias": torch.randn(2),
    }


def save(path: Path, tensors: dict[str, Tensor]) -> Path:
    save_file({name: value.clone().contiguous() for name, value in tensors.items()}, path)
    return path
