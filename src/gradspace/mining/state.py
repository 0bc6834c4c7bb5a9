"""What a mining has done so far, on disk: one that was interrupted goes on from there."""

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
"""Hashed at a time."""


def state_file(state: Path) -> Path:
    """The file of this process: of several, each has one of its own beside the others."""
    if world_size() == 1:
        return state
    return state.with_name(f"{state.name}.{rank()}-of-{world_size()}")


def remove_states(state: Path) -> None:
    """Delete the files of all processes, and what one that was killed has left half written."""
    for start in ("", "."):
        for file in state.parent.glob(f"{start}{escape(state.name)}*"):
            file.unlink()


def fingerprint(tensors: tuple[Tensor, ...], settings: dict[str, Any]) -> str:
    """Of all that a mining depends on; another one for other inputs."""
    result = blake2b(repr(sorted(settings.items())).encode(), digest_size=16)
    for tensor in tensors:
        result.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        for rows in blocks(len(tensor), ROWS):
            result.update(tensor[rows].cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return result.hexdigest()


def save_state(path: Path, inputs: str, tensors: dict[str, Tensor]) -> None:
    save_tensors(path, tensors, {"kind": KIND, "inputs": inputs})


def load_state(path: Path, inputs: str) -> dict[str, Tensor] | None:
    """What was saved for the same inputs; None, to start anew, where others were mined.

    A file of another kind is never overwritten.
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
        f"{path} is not the state of an interrupted mining, and is not overwritten: name another "
        "file for the state, or delete it"
    )
