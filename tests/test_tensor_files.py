"""A checkpoint that is read while another takes its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from gradspace import tensor_files
from gradspace.tensor_files import load_tensors, save_tensors


@pytest.mark.parametrize("fails", [True, False])
def test_a_file_that_is_replaced_while_it_is_read(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of the new file comes with its tensors, never with those of the old one."""
    path, opened = tmp_path / "last.safetensors", []
    save_tensors(path, {"weight": torch.zeros(2)}, {"step": 1})

    def slow(*arguments: Any, **options: Any) -> Any:
        opened.append(1)
        file = safe_open(*arguments, **options)
        if len(opened) == 1:
            save_tensors(path, {"weight": torch.ones(9)}, {"step": 2})
            if fails:
                raise RuntimeError("size <8> is smaller than the required mapping size <36>")
        return file

    monkeypatch.setattr(tensor_files, "safe_open", slow)
    tensors, record = load_tensors(path)
    assert len(opened) == 2
    assert record == {"step": 2}
    assert torch.equal(tensors["weight"], torch.ones(9))


def test_a_file_that_cannot_be_mapped_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "last.safetensors"
    save_tensors(path, {}, {})

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no such mapping")

    monkeypatch.setattr(tensor_files, "safe_open", broken)
    with pytest.raises(ValueError, match=r"not a complete gradspace checkpoint \(no such mapping"):
        load_tensors(path)
