"""Trainers of the published models on random data, whose content does not affect the time.

Features are on the device, as `gradspace train` keeps them on a GPU. A dual encoder reads pictures
that are already decoded and on the device.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradspace.data.batches import Batch
from gradspace.data.dataset import Dataset, make_split
from gradspace.data.resident import ResidentFeatures
from gradspace.models import ImageInput, TextInput, build_model
from gradspace.runs.folder import Run
from gradspace.runs.recipe import make_recipe
from gradspace.runs.system import System, new_system
from gradspace.training.loop import Trainer
from gradspace.training.monitor import Monitor

REGIONS, FEATURES = 36, 2048
MODELS: dict[str, tuple[str, dict[str, bool], tuple[int, ...]]] = {
    "VSE++": ("vse++", {}, (FEATURES,)),
    "VSRN": ("vsrn", {"caption_decoder": True}, (REGIONS, FEATURES)),
    "VSE-infinity": ("vse-infinity", {}, (REGIONS, FEATURES)),
    "BFAN": ("bfan", {}, (REGIONS, FEATURES)),
}
"""Registered name, parameters besides the width, and shape of an image's features."""
NO_LEARNING = 1e-9
"""Learning rate; training on random data would only make embeddings alike."""
IMAGES, CAPTIONS, NUM_WORDS = 600, 5, 4000
"""Size of the dataset of features: images, captions per image, and words."""
WORDS = (6, 15)
"""Range of a caption's number of words, without start and end."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a dual encoder, whose text tower is as wide as the common space."""

    image_width: int = 768
    text_width: int = 512
    layers: int = 12
    picture: int = 224
    patch: int = 32
    num_tokens: int = 49_408


VIT_B_32 = Sizes()
TINY = Sizes(image_width=16, text_width=16, layers=1, picture=32, patch=8, num_tokens=100)
TOKENS = (8, 20)
"""Range of a caption's number of tokens, including start and end."""


def temporary_run() -> Run:
    """Create a folder that is deleted when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="gradspace-bench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Run(folder)


def batches_forever(trainer: Trainer) -> Iterator[Batch]:
    """Yield batches as the training loop draws them, epoch after epoch."""
    while True:
        yield from trainer.batches()


# --- models that read features ------------------------------------------------------------------


def feature_trainer(
    dataset: Dataset, run: Run, device: str, *, precision: str = "bfloat16", **tables: Any
) -> Trainer:
    """Make a trainer that is ready to train on batches, from tables of a recipe."""
    training = {"precision": precision, "learning_rate": NO_LEARNING, **tables.pop("training", {})}
    recipe = make_recipe({"training": training, **tables})
    system = new_system(recipe, dataset, run, torch.device(device))
    system.model.train()
    return Trainer(recipe, dataset, system, run, Monitor(None, 0))


def model_table(model: str, width: int) -> dict[str, Any]:
    """Build the recipe's table of a model; VSRN is twice as wide as the others."""
    name, settings, _ = MODELS[model]
    return {"name": name, "width": 2 * width if model == "VSRN" else width, **settings}


def random_features(model: str, device: str) -> Dataset:
    draw = np.random.default_rng(0)

    def caption() -> str:
        return " ".join(f"w{word}" for word in draw.integers(NUM_WORDS, size=draw.integers(*WORDS)))

    described = [(f"{index}.jpg", [caption() for _ in range(CAPTIONS)]) for index in range(IMAGES)]
    shape = MODELS[model][2]
    features = ResidentFeatures(torch.rand(IMAGES, *shape, device=device))
    return Dataset("random", {"train": make_split("train", described, features=features)})


# --- a dual encoder -----------------------------------------------------------------------------


def dual_trainer(sizes: Sizes, run: Run, device: str, *, objective: str, batch: int) -> Trainer:
    """Make a trainer that fine-tunes all of a CLIP with random weights."""
    folder = run.folder / "network"
    _write_clip(folder, sizes)
    recipe = make_recipe(
        {
            "model": {"name": "dual", "pretrained": str(folder)},
            "objective": {"name": objective},
            "training": {
                "batch_size": batch,
                "precision": "bfloat16",
                "learning_rate": NO_LEARNING,
            },
        }
    )
    torch.manual_seed(0)
    model = build_model(
        "dual",
        image_input=ImageInput(backbone=folder, pretrained=False),
        text_input=TextInput(encoder=folder, pretrained=False),
    ).to(device)
    model.train()
    split = make_split("train", [(f"{index}.jpg", [""]) for index in range(batch)])
    system = System(model, _no_tokens, torch.device(device))
    return Trainer(recipe, Dataset("random", {"train": split}), system, run, Monitor(None, 0))


def picture_batches(sizes: Sizes, batch: int, device: str, number: int = 4) -> list[Batch]:
    """Make batches of random pixels and tokens, on the device."""
    draw = torch.Generator().manual_seed(0)
    return [_picture_batch(sizes, batch, device, draw) for _ in range(number)]


def _picture_batch(sizes: Sizes, batch: int, device: str, draw: torch.Generator) -> Batch:
    ids = torch.arange(batch)
    lengths = torch.randint(*TOKENS, (batch,), generator=draw)
    end = sizes.num_tokens - 1
    tokens = torch.randint(1, end, (batch, int(lengths.max())), generator=draw)
    tokens[ids, lengths - 1] = end
    tokens[torch.arange(tokens.shape[1]) >= lengths[:, None]] = 0
    pixels = torch.randn(batch, 3, sizes.picture, sizes.picture, generator=draw)
    return Batch(pixels.to(device), tokens.to(device), lengths, ids, ids.clone(), ids.clone())


def _no_tokens(captions: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Stand in for a tokenizer, as batches come with their tokens."""
    return torch.zeros(len(captions), 1, dtype=torch.long), torch.ones(len(captions)).long()


def _write_clip(folder: Path, sizes: Sizes) -> None:
    """Write the files a network is built from, without weights."""
    from transformers import CLIPConfig

    text = {
        "hidden_size": sizes.text_width,
        "intermediate_size": 4 * sizes.text_width,
        "num_attention_heads": max(sizes.text_width // 64, 1),
        "num_hidden_layers": sizes.layers,
        "vocab_size": sizes.num_tokens,
        "bos_token_id": sizes.num_tokens - 2,
        "eos_token_id": sizes.num_tokens - 1,
        "pad_token_id": 0,
    }
    vision = {
        "hidden_size": sizes.image_width,
        "intermediate_size": 4 * sizes.image_width,
        "num_attention_heads": max(sizes.image_width // 64, 1),
        "num_hidden_layers": sizes.layers,
        "image_size": sizes.picture,
        "patch_size": sizes.patch,
    }
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=sizes.text_width)
    config.save_pretrained(folder)
    square = {"height": sizes.picture, "width": sizes.picture}
    pixels = {"size": {"shortest_edge": sizes.picture}, "crop_size": square}
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels))
