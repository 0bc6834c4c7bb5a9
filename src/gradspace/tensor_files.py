"""Safetensors files with tensors and a JSON record, complete or absent; nothing is unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from gradspace.files import check_is_file, write_atomically


def save_tensors(
    path: str | Path, tensors: Mapping[str, Tensor], record: Mapping[str, Any]
) -> None:
    """Write both atomically: a reader sees either the old file or the new one."""
    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with write_atomically(path, "wb") as file:
        file.write(save(_unshared(content), metadata={"record": json.dumps(record)}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the record of a file.

    safetensors opens a file twice; if a running training replaces it in between, it is read again.
    """
    check_is_file(path, "a file of tensors that gradspace wrote")
    begun = _version(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        record = json.loads(metadata["record"])
    except (SafetensorError, RuntimeError, KeyError, json.JSONDecodeError) as error:
        if _version(path) != begun:
            return load_tensors(path)
        raise ValueError(f"{path} is not a complete gradspace checkpoint ({error})") from error
    return (tensors, record) if _version(path) == begun else load_tensors(path)


def _version(path: Path) -> tuple[int, int, int]:
    """Identify a file's version, which changes when the file is replaced."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share memory with an earlier one, which safetensors refuses."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        result[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return result
