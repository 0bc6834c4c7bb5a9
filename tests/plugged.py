"""A user's file with a weight, a loss, a model and a reader, and commands that forget it."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from commands import Done, here

from gradspace import plugins
from gradspace.data.readers.registry import READERS
from gradspace.models.registry import MODELS
from gradspace.objectives.registry import LOSSES, PAIR_WEIGHTS, TRIPLET_WEIGHTS

REGISTRIES: tuple[dict[str, Any], ...] = (
    LOSSES,
    PAIR_WEIGHTS,
    TRIPLET_WEIGHTS,
    MODELS,
    READERS,
    plugins._homes,
    plugins._named,
)

WEIGHT = '''
from pathlib import Path

import torch

from gradspace.objectives import triplet_weight

with (Path(__file__).parent / "executed").open("a") as log:
    log.write("once")


@triplet_weight("gaussian", source="made up")
def gaussian(p: torch.Tensor, n: torch.Tensor, *, width: float = 0.3) -> torch.Tensor:
    """exp(-((p - n) / width)^2)."""
    return torch.exp(-(((p - n) / width) ** 2))
'''
LOSS = '''
from dataclasses import dataclass

from gradspace.objectives import loss
from gradspace.objectives.triplet import HardestTriplet


@loss("wide", source="made up")
@dataclass(frozen=True)
class Wide(HardestTriplet):
    """The hardest triplet with a wide margin."""

    margin: float = 0.5
'''
MODEL = '''
from gradspace.models import model
from gradspace.models.vse_pp import VSEPlusPlus


@model("mine", source="made up", training={"epochs": 1, "batch_size": 32})
class Mine(VSEPlusPlus):
    """VSE++ by another name."""
'''
READER = '''
from gradspace.data import open_dataset
from gradspace.data.readers import reader


@reader("few", recognises=lambda path: path.suffix == ".few", looks_for="a .few file")
def open_few(path, images):
    """So many scenes as the file says."""
    return open_dataset("scenes", num_train=int(path.read_text()), num_dev=40, num_test=40)
'''


def write_plugin(folder: Path, name: str = "my_things.py", text: str | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text or WEIGHT + LOSS + MODEL + READER)
    return path


def times_executed(folder: Path) -> int:
    log = folder / "executed"
    return len(log.read_text()) // len("once") if log.exists() else 0


@contextmanager
def forgotten(folder: Path) -> Iterator[None]:
    """What is imported from a folder in here, and registered, is afterwards as if it were not."""
    kept, path = [copy.copy(registry) for registry in REGISTRIES], sys.path[:]
    plugins._homes.clear()  # of what other tests have registered
    try:
        yield
    finally:
        for registry, before in zip(REGISTRIES, kept, strict=True):
            registry.clear()
            registry.update(before)
        sys.path[:] = path
        for name, module in list(sys.modules.items()):
            if (getattr(module, "__file__", None) or "").startswith(str(folder)):
                del sys.modules[name]


def once(folder: Path, *arguments: str | Path) -> Done:
    """A command in this process, which knows no plug-in of the commands before."""
    with forgotten(folder):
        return here(*arguments)
