"""Export of a run to a folder for others, on disk or on the Hugging Face hub."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import torch
from huggingface_hub import HfApi

from gradspace.models.dual import DualEncoder
from gradspace.models.prepare.tokenizer import Tokenizer
from gradspace.runs.card import write_card
from gradspace.runs.folder import Run, open_run
from gradspace.runs.system import load_system
from gradspace.wording import typed

NEEDED = (
    "recipe.toml",
    "environment.json",
    "vocabulary.json",
    "tokenizer",
    "backbone",
    "text-encoder",
    "pretrained",
    "best.safetensors",
)
"""Files needed to use a run; the others serve its training."""


def export_run(folder: Path, out: Path, licence: str | None = None) -> None:
    """Write the best weights of a run with all files needed to use them, and a model card.

    A fine-tuned dual encoder becomes a folder that plain transformers loads.
    """
    run = open_run(folder)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} exists and is not an empty folder: choose another --out")
    if run.recipe().model.pretrained:
        model = load_system(folder, torch.device("cpu")).model
        assert isinstance(model, DualEncoder)
        model.save_pretrained(out)
        Tokenizer(folder / "tokenizer").save(out)
    else:
        _copy(run, out)
    write_card(run, out, licence)


def _copy(run: Run, out: Path) -> None:
    if not run.best.exists():
        raise ValueError(
            f"{run.folder} has no best.safetensors yet: train it for at least one epoch"
        )
    out.mkdir(parents=True, exist_ok=True)
    for path in (run.folder / name for name in NEEDED):
        if path.is_dir():
            shutil.copytree(path, out / path.name)
        elif path.exists():
            shutil.copyfile(path, out / path.name)


def push_folder(folder: Path, name: str, *, private: bool = False) -> str:
    """Upload a folder to the hub as `owner/name`; return the address of its page."""
    hub = HfApi()
    try:
        place = hub.create_repo(name, private=private, exist_ok=True)
        hub.upload_folder(repo_id=name, folder_path=folder, commit_message="Upload by gradspace")
    except (httpx.HTTPError, OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"{typed(folder)} was written but cannot be pushed to {name} ({reason}): check the "
            f"network and `hf auth login`, then run `hf upload {name} {typed(folder)}`"
        ) from error
    return str(place)
