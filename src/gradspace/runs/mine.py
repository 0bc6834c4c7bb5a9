"""Hardest negatives of a run over a whole split, written to a file: `gs.mine`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gradspace.data.dataset import Dataset, Split
from gradspace.files import check_is_file, check_out_file
from gradspace.mining import (
    MinedLists,
    mine_exact,
    mine_proposed,
    mine_to_file,
    mine_with_faiss,
    save_lists,
)
from gradspace.processes import choose_device, is_first
from gradspace.progress import Progress, Show, silently
from gradspace.runs.data import open_recipe, run_data
from gradspace.runs.folder import Run, weights_digest
from gradspace.runs.represent import represent_split
from gradspace.runs.system import System, load_system
from gradspace.scores.represented import Embeddings, Parts, Represented, load_embeddings

PROPOSALS = 2
"""Number of proposals per listed entry."""


@dataclass(frozen=True, eq=False)
class MinedFile:
    """Lists of hardest negatives, the path of their file, and their origin."""

    path: Path
    lists: MinedLists
    split: Split | None
    """The split; None if they were mined from embeddings without their dataset."""


def mine(
    source: str | Path,
    data: str | Path | None = None,
    *,
    split: str | None = None,
    features: str | Path | None = None,
    top_texts: int = 300,
    top_images: int = 60,
    out: str | Path | None = None,
    approximate: bool = False,
    propose: str | Path | None = None,
    proposals: int | None = None,
    device: str | None = None,
    show: Show = silently,
) -> MinedFile:
    """Find the hardest negatives of every image and caption, and write them to a file.

    If it is interrupted, the next call resumes where it stopped.

    Args:
        source: the folder of a run, or a file of `gradspace embed`.
        data: a dataset other than the one the run was trained on.
        split: the split to mine, train by default.
        top_texts: captions in the list of an image.
        top_images: images in the list of a caption.
        out: file of the lists; lists.safetensors in the run by default.
        approximate: use an index of faiss, for huge collections.
        propose: a run that embeds; the mined one, which scores pairs, orders its proposals.
        proposals: number of proposals per listed entry; 2 by default.
    """
    place = Path(source)
    _check_stages(propose, proposals, approximate)
    path = _place_for_lists(place, out)
    found, chosen, about = _represent(place, split, data, features, device, show)
    lengths: dict[str, Any] = {"top_texts": top_texts, "top_images": top_images}
    if approximate:
        lists = _approximately(path, found, lengths, about, show)
    elif propose is None:
        search = partial(mine_exact, found, **lengths, source=about)
        lists = _exactly(path, search, "mining", show)
    else:
        proposer, _, _ = _represent(Path(propose), split, data, features, device, show)
        both = _checked(proposer, found, propose)
        lengths["proposals"] = proposals or PROPOSALS
        search = partial(mine_proposed, *both, **lengths, source=about)
        lists = _exactly(path, search, "scoring", show)
    return MinedFile(path, lists, chosen)


def _place_for_lists(source: Path, out: str | Path | None) -> Path:
    of_run = source / "lists.safetensors" if source.is_dir() else source.with_suffix(".lists")
    path = Path(out) if out else of_run
    check_out_file(path)
    return path


def _check_stages(propose: str | Path | None, proposals: int | None, approximate: bool) -> None:
    """Raise a ValueError for options that would be ignored."""
    if propose is None and proposals is not None:
        raise ValueError(
            "--proposals goes with --propose: give the run that proposes, or leave it out"
        )
    if propose is not None and approximate:
        raise ValueError("give --propose or --approximate, not both: they are different searches")


def _checked(
    proposer: Represented, found: Represented, propose: str | Path
) -> tuple[Embeddings, Parts]:
    if not isinstance(found, Parts):
        raise ValueError("--propose is for a run that scores pairs, such as scan or bfan")
    if not isinstance(proposer, Embeddings):
        raise ValueError(f"--propose needs a run that embeds, and {propose} scores pairs")
    return proposer, found


def _represent(
    source: Path,
    split: str | None,
    data: str | Path | None,
    features: str | Path | None,
    device: str | None,
    show: Show,
) -> tuple[Represented, Split | None, dict[str, str]]:
    """Represent a split by a run; also return the split, and the origin of both."""
    if not source.is_dir():
        check_is_file(source, "the folder of a run, or a file of `gradspace embed`")
        if data is not None or features is not None or split is not None:
            raise ValueError(
                f"{source} is a file of embeddings, which are mined unchanged: leave --data, "
                "--features and --split out"
            )
        return load_embeddings(source), None, {"embeddings": source.name}
    with show("reading data") as progress:
        dataset = open_recipe(run_data(source, data, features), progress, run=source)
    chosen = dataset.split(split or "train")
    system = load_system(source, choose_device(device))
    with show("embedding") as progress:
        found = represent_split(system, chosen, progress)
    weights = weights_digest(Run(source).best)
    return found, chosen, {"dataset": dataset.name, "split": chosen.name, "weights": weights}


def _exactly(path: Path, search: Callable[..., MinedLists], what: str, show: Show) -> MinedLists:
    with show(what) as progress:
        return mine_to_file(path, lambda state: search(state=state, progress=progress))


def _approximately(
    path: Path, found: Represented, lengths: dict[str, Any], about: dict[str, str], show: Show
) -> MinedLists:
    if not isinstance(found, Embeddings):
        raise ValueError("--approximate is for runs that embed: use --propose with such a run")
    with show("mining"):
        lists = mine_with_faiss(found, **lengths, source=about)
    if is_first():
        save_lists(path, lists)
    return lists


def mine_run(
    system: System,
    dataset: Dataset,
    out: Path,
    *,
    top_texts: int,
    top_images: int,
    source: dict[str, str],
    progress: Progress | None = None,
) -> MinedLists:
    """Mine the training split with a model, into a file."""
    train = dataset.split("train")
    found = represent_split(system, train)
    return mine_to_file(
        out,
        lambda state: mine_exact(
            found,
            top_texts=top_texts,
            top_images=top_images,
            source={"dataset": dataset.name, "split": "train", **source},
            state=state,
            progress=progress,
        ),
    )
