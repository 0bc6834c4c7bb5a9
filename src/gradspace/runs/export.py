"""From a run to a folder that plain transformers loads."""

from __future__ import annotations

from pathlib import Path

import torch

from gradspace.models.dual import DualEncoder
from gradspace.models.prepare.tokenizer import Tokenizer
from gradspace.runs.folder import open_run
from gradspace.runs.system import load_system


def export_run(folder: Path, out: Path) -> None:
    """Write the best weights of a fine-tuned dual encoder, its tokenizer and image processor."""
    recipe = open_run(folder).recipe().model
    if not recipe.pretrained:
        raise ValueError(
            f"{folder} trained {recipe.name}, which transformers does not have: only runs of the "
            "model dual are exported"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} exists and is not an empty folder: choose another --out")
    model = load_system(folder, torch.device("cpu")).model
    assert isinstance(model, DualEncoder)
    model.save_pretrained(out)
    Tokenizer(folder / "tokenizer").save(out)
