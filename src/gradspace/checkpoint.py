"""Checkpoints: tensors and a JSON record in one safetensors file, complete or absent.

Nothing is ever unpickled: the state of an optimiser is flattened into named tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.optim import Optimizer

from gradspace.files import write_atomically


def save_checkpoint(
    path: str | Path, tensors: Mapping[str, Tensor], record: Mapping[str, Any]
) -> None:
    """Write both at once; a reader sees the old file or the new one."""
    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with write_atomically(path, "wb") as file:
        file.write(save(_unshared(content), metadata={"record": json.dumps(record)}))


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the record of a checkpoint.

    safetensors opens a file twice: one that a running training replaces meanwhile is read again.
    """
    if not path.is_file():
        raise ValueError(f"there is no checkpoint {path}")
    begun = _version(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        record = json.loads(metadata["record"])
    except (SafetensorError, RuntimeError, KeyError, json.JSONDecodeError) as error:
        if _version(path) != begun:
            return load_checkpoint(path)
        raise ValueError(f"{path} is not a complete gradspace checkpoint ({error})") from error
    return (tensors, record) if _version(path) == begun else load_checkpoint(path)


def _version(path: Path) -> tuple[int, int, int]:
    """Another one for a file that has taken the place of the first."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def without_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under a prefix, without it."""
    start = f"{prefix}."
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}


def optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """Every tensor of an optimiser's state, as `index.name`."""
    state = optimizer.state_dict()["state"]
    return {f"{i}.{name}": t for i, values in state.items() for name, t in values.items()}


def restore_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put the tensors back into an optimiser over the same parameters."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict(
        {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
    )


def random_states(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's random generators that computing on a device draws from."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_random_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"].clone())  # torch reads a view from its storage's start
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"].clone(), device)


def _unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """safetensors refuses tensors that share memory: the second of two gets its own."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        result[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return result
