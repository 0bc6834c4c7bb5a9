"""Progress of a mining on disk, from which an interrupted one resumes."""

from __future__ import annotations

from glob import escape
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradspace.processes import rank, world_size
from gradspace.scores.tiles import blocks
from gradspace.tensor_files import load_tensors, save_tensors

KIND = "state of a mining"
ROWS = 4096
"""Number of rows hashed at a time."""


def state_file(state: Path) -> Path:
    """Return the file of this process; several processes have one each, side by side."""
    if world_size() == 1:
        return state
    return state.with_name(f"{state.name}.{rank()}-of-{world_size()}")


def remove_states(state: Path) -> None:
    """Delete the files of all processes, and unfinished ones of a process that was killed."""
    for start in ("", "."):
        for file in state.parent.glob(f"{start}{escape(state.name)}*"):
            file.unlink()


def fingerprint(tensors: tuple[Tensor, ...], settings: dict[str, Any]) -> str:
    """Hash everything that a mining depends on."""
    result = blake2b(repr(sorted(settings.items())).encode(), digest_size=16)
    for tensor in tensors:
        result.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        for rows in blocks(len(tensor), ROWS):
            result.update(tensor[rows].cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return result.hexdigest()


def save_state(path: Path, inputs: str, tensors: dict[str, Tensor]) -> None:
    save_tensors(path, tensors, {"kind": KIND, "inputs": inputs})


def load_state(path: Path, inputs: str) -> dict[str, Tensor] | None:
    """Load the state saved for these inputs; None if it belongs to others, which starts anew.

    A file of another kind is not overwritten, but raises a ValueError.
    """
    if not path.exists():
        return None
    try:
        tensors, record = load_tensors(path)
    except ValueError as error:
        raise _not_a_state(path) from error
    if record.get("kind") != KIND:
        raise _not_a_state(path)
    return tensors if record["inputs"] == inputs else None


def _not_a_state(path: Path) -> ValueError:
    return ValueError(
        f"{path} is not the state of an interrupted mining, and is not overwritten: choose another "
        "file for the state, or delete it"
    )
