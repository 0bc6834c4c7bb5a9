"""Needs of a comparison: files and models, and where they have to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import try_to_load_from_cache

from gradspace.commands import command, program
from gradspace.comparison.grid import Cell, with_first_rounds
from gradspace.comparison.recipe import Comparison
from gradspace.data.open import is_dataset, reader_of_name


@dataclass(frozen=True)
class Need:
    """A dataset, features or a pretrained model."""

    what: str
    there: bool
    fetched: bool
    """Whether it is named like a model on the hub, which is downloaded on first use."""
    about: str


def find_needs(comparison: Comparison, cells: Sequence[Cell]) -> list[Need]:
    """List everything that the cells and their first rounds read, each once."""
    paths: dict[str, None] = {}
    models: dict[str, None] = {}
    for cell in with_first_rounds(cells):
        data, model = cell.recipe.data, cell.recipe.model
        if not reader_of_name(data.source):
            paths |= dict.fromkeys(str(p) for p in (data.source, data.images, data.features) if p)
        for path in filter(None, (model.parameters.get("weights"), model.word_vectors)):
            paths[str(path)] = None
        names = (model.backbone, model.text_encoder, model.pretrained)
        models |= dict.fromkeys(name for name in names if name)
    about = comparison.needs
    return [
        *(Need(path, _is_there(path), False, _about(path, about)) for path in paths),
        *(Need(name, _has(name), _on_hub(name), _about(name, about)) for name in models),
    ]


def _is_there(path: str) -> bool:
    """Whether a path is a file or a folder, or names data otherwise, as a glob of shards does."""
    return Path(path).expanduser().exists() or is_dataset(path)


def check_needs(comparison: Comparison, cells: Sequence[Cell], name: str) -> None:
    """Raise a ValueError if files are missing, before anything is trained."""
    streamed = [cell for cell in cells if cell.recipe.data.parameters.get("stream")]
    if any(cell.recipe.offline for cell in streamed):
        raise ValueError(
            f"{name} mines negatives for its second rounds, and has data.stream: mining compares "
            "all of the training data, which a stream does not have as a whole; leave data.stream "
            "out, or choose other objectives with --only"
        )
    missing = [n for n in find_needs(comparison, cells) if not n.there and not n.fetched]
    if missing:
        others = len(missing) - 1
        more = f", and {others} more {'are' if others > 1 else 'is'} missing" if others else ""
        raise ValueError(
            f"{name} needs {missing[0].what}, which is not there{more}: "
            f"`{command('compare', name, '--check')}` lists what goes where, and `--data scenes` "
            "runs the same grid on built-in data"
        )


def _about(what: str, sentences: dict[str, str]) -> str:
    """Find the sentence on a need, or on the folder it is in; its commands work as printed."""
    folders = [str(folder) for folder in (Path(what), *Path(what).parents)]
    found = next((sentences[folder] for folder in folders if folder in sentences), "")
    return found.replace("gradspace data ", f"{program()} data ")


def _has(model: str) -> bool:
    if Path(model).expanduser().is_dir():
        return True
    return _on_hub(model) and isinstance(try_to_load_from_cache(model, "config.json"), str)


def _on_hub(model: str) -> bool:
    """Whether a name is `name` or `owner/name`; anything else is a folder."""
    return model.count("/") <= 1 and not model.startswith((".", "/", "~"))
