"""Open any dataset, by name or by the layout of its folder or file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from gradspace.commands import EXAMPLE_MODEL, command
from gradspace.data.dataset import Dataset, Features
from gradspace.data.feature_files import read_features, slice_features
from gradspace.data.image_files import image_endings
from gradspace.data.problems import broken_items, structural_problems, without
from gradspace.data.readers import READERS, Reader
from gradspace.parameters import arguments_of, checked, parameters_of
from gradspace.plugins import load_installed
from gradspace.progress import Progress
from gradspace.wording import counted, typed

LOOKED_AT = 1000
"""Number of files examined in a folder of unknown layout."""


def open_dataset(
    source: str | Path,
    *,
    images: str | Path | None = None,
    features: str | Path | None = None,
    skip_broken: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Dataset:
    """Open a dataset for training and evaluation.

    `source` is "scenes", "questions" or a path in one of the layouts of `data/readers`. `images` is
    a folder or zip, by default looked for beside the captions. `features` is an .npy whose rows
    follow the images of the splits in order, or a folder that a `FeatureWriter` wrote. `options`
    are those of the reader.

    A dataset with problems is rejected, naming the first. With `skip_broken` the items that have
    problems are left out and listed in `Dataset.problems`. This reads all features of an .npy, or
    else all images, once, and calls `progress` with the number done and the total.

    Examples:
        >>> open_dataset("scenes", num_train=100).splits["train"].image_names[7]
        'train-000007'
    """
    dataset = open_items(
        source, images, features, skip_broken=skip_broken, progress=progress, options=options
    )
    return add_features_folder(dataset, features)


def open_items(
    source: str | Path,
    images: str | Path | None,
    features: str | Path | None,
    *,
    skip_broken: bool = False,
    progress: Progress | None = None,
    options: Mapping[str, Any],
) -> Dataset:
    """Open the usable items of a dataset; a features folder may still have to be filled.

    Given such a folder, which has to exist, the images may be missing.
    """
    dataset = read_dataset(source, images, features, options, progress)
    problems = structural_problems(dataset)
    if skip_broken:
        dataset = without(dataset, problems)
        # A folder has features of the images that could be read.
        read = features is None or _is_folder(features)
        dataset = without(dataset, broken_items(dataset, progress, images=read))
        for split in dataset.splits.values():
            if not split.captions:
                raise ValueError(f"every item of split {split.name!r} of {source} has problems")
    elif dataset.problems or problems:
        first, *others = (*dataset.problems, *problems)
        raise ValueError(
            f"{source} has {counted(len(others) + 1, 'problem')}, the first is {first}; "
            "`gradspace data check` lists them, and skip_broken leaves these items out"
        )
    return dataset


def is_dataset(source: str | Path) -> bool:
    """Whether a source is the name of a built-in dataset, or has a known layout."""
    try:
        _find_reader(source, None)
    except ValueError:
        return False
    return True


def read_dataset(
    source: str | Path,
    images: str | Path | None,
    features: str | Path | None,
    options: Mapping[str, Any],
    progress: Progress | None = None,
) -> Dataset:
    """Read a dataset from disk, including items with problems.

    Features are added if they are in one file; a folder of features is added later, because it was
    written for the items that remain after problems were left out.
    """
    reader, places = _find_reader(source, images)
    chosen = checked(reader.name, parameters_of(reader.open), options)
    shown = {"progress": progress} if reader.shows_progress else {}
    dataset = reader.open(*places, **shown, **arguments_of(reader.open, chosen))
    if dataset.stream is not None:
        if features is not None:
            raise ValueError("a stream reads pictures from its shards: leave features out")
        return dataset
    if not dataset.splits:
        raise ValueError(f"{source} has no images at all")
    if not any(split.captions for split in dataset.splits.values()):
        raise ValueError(f"{source} has no captions at all")
    if features is None:
        if not any(s.images or s.features or s.passages for s in dataset.splits.values()):
            raise ValueError(
                f"there are no images beside the captions of {source}: "
                "give their folder or zip as images, or an .npy as features"
            )
        return dataset
    if _is_folder(features):
        return dataset
    return _with(dataset, slice_features(Path(features).expanduser(), dataset.splits))


def add_features_folder(dataset: Dataset, features: str | Path | None) -> Dataset:
    """Add what a `FeatureWriter` wrote to a dataset, if `features` is such a folder."""
    if features is None or not _is_folder(features):
        return dataset
    folder = Path(features).expanduser()
    return _with(dataset, {n: read_features(folder, split) for n, split in dataset.splits.items()})


def _is_folder(features: str | Path) -> bool:
    return Path(features).expanduser().is_dir()


def _find_reader(
    source: str | Path, images: str | Path | None
) -> tuple[Reader, tuple[()] | tuple[Path, Path | None]]:
    """Find the reader of a source, and the paths of its captions and images."""
    if by_name := reader_of_name(source):
        if images is not None:
            raise ValueError(f"{source} has its own images: leave images out")
        return by_name, ()
    path = Path(source).expanduser()
    found = _readers_of(path)
    if not found:
        load_installed()
        found = _readers_of(path)
    if len(found) == 1:
        return found[0], (path, Path(images).expanduser() if images is not None else None)
    if found:
        names = " and ".join(reader.name for reader in found)
        raise ValueError(f"{source} looks like both {names}: give the file with the captions")
    built_in = ", ".join(repr(r.name) for r in READERS.values() if not r.recognises)
    layouts = "; ".join(reader.looks_for for reader in READERS.values() if reader.recognises)
    known = "has no known layout" if path.exists() else "does not exist"
    raise ValueError(
        f"{typed(path.absolute())} {known}: give {built_in}, or a path to one of: {layouts}"
        f"{_way_of_photos(path)}"
    )


def _way_of_photos(path: Path) -> str:
    """Suggest `gradspace index` for a folder of photos without captions; "" for other paths."""
    first = islice(path.rglob("*"), LOOKED_AT) if path.is_dir() else ()
    if not any(file.suffix.lower() in image_endings() for file in first):
        return ""
    searched = command("index", EXAMPLE_MODEL, path, "--out", "index")
    return f"; photos without captions can be searched: `{searched}`"


def reader_of_name(source: str | Path) -> Reader | None:
    """Find the reader of a dataset that is known by its name and is not on disk."""
    if not isinstance(source, str):
        return None
    if source not in READERS and not Path(source).expanduser().exists():
        load_installed()
    found = READERS.get(source)
    return found if found and found.recognises is None else None


def _readers_of(path: Path) -> list[Reader]:
    exists = path.exists()
    return [
        reader
        for reader in READERS.values()
        if reader.recognises and (exists or reader.elsewhere) and reader.recognises(path)
    ]


def _with(dataset: Dataset, features: Mapping[str, Features]) -> Dataset:
    splits = {n: replace(split, features=features[n]) for n, split in dataset.splits.items()}
    return replace(dataset, splits=splits)
