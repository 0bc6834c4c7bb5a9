"""Shards by name: a file, a folder, a glob, or a brace range such as `train-{000..012}.tar`."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

NAMED_SPLITS = {
    "train": "train",
    "dev": "dev",
    "val": "dev",
    "valid": "dev",
    "validation": "dev",
    "test": "test",
}
"""Usual names of splits, and ours."""

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_SPLIT = re.compile(rf"({'|'.join(NAMED_SPLITS)})(?![a-z])")


def expand_braces(pattern: str) -> Iterator[str]:
    """Expand `{000..012}` and `{a,b}`, with as many digits as the first number has.

    >>> list(expand_braces("{a,b}-{08..10}.tar"))
    ['a-08.tar', 'a-09.tar', 'a-10.tar', 'b-08.tar', 'b-09.tar', 'b-10.tar']
    """
    found = _BRACES.search(pattern)
    if found is None:
        yield pattern
        return
    before, after = pattern[: found.start()], pattern[found.end() :]
    for choice in _choices(found[1], pattern):
        for rest in expand_braces(after):
            yield before + choice + rest


def _choices(inside: str, pattern: str) -> Sequence[str]:
    if ends := _RANGE.fullmatch(inside):
        first, last = int(ends[1]), int(ends[2])
        if last < first:
            raise ValueError(f"{pattern}: the range {{{inside}}} ends before it begins")
        return [f"{number:0{len(ends[1])}d}" for number in range(first, last + 1)]
    return inside.split(",")


def is_pattern(path: Path) -> bool:
    """Whether a path stands for several files."""
    return any(mark in str(path) for mark in "*?[{")


def name_of(path: Path) -> str:
    """Name a dataset after its file, its folder, or the pattern of its files."""
    if path.is_file():
        return path.name.partition(".")[0]
    return (path if path.is_dir() else path.parent).resolve().name


def find_shards(path: Path, ending: str = ".tar") -> list[Path]:
    """Find the shards that a file, folder or pattern names, each once; brace ranges in order."""
    if path.is_dir():
        found = [file for file in sorted(path.iterdir()) if file.suffix == ending]
    elif path.exists() or not is_pattern(path):
        found = [path]
    else:
        parts = expand_braces(str(path))
        found = [Path(f) for part in parts for f in (_globbed(part) or [part])]
    for shard in found:
        if not shard.is_file():
            raise ValueError(f"{shard} does not exist: {path} names it as a shard")
    return list(dict.fromkeys(found))


def _globbed(pattern: str) -> list[str]:
    return sorted(glob.glob(pattern)) if any(mark in pattern for mark in "*?[") else []


def shards_by_split(
    path: Path, named: Mapping[str, str], ending: str = ".tar"
) -> dict[str, list[Path]]:
    """Group shards by split, all under "" if nothing tells their split.

    Shards that `named` has patterns for, by split, belong to no other split.
    """
    given = {
        split: find_shards(Path(pattern).expanduser(), ending)
        for split, pattern in named.items()
        if pattern
    }
    taken = {shard.resolve() for shards in given.values() for shard in shards}
    rest = [shard for shard in find_shards(path, ending) if shard.resolve() not in taken]
    found = _by_name(rest, path)
    if given and "" in found:
        found["train"] = found.pop("")
    return {**found, **given}


def _by_name(shards: Sequence[Path], source: Path) -> dict[str, list[Path]]:
    """Group shards by the split that their names begin with; all under "" if no name does."""
    found: dict[str, list[Path]] = {}
    for shard in shards:
        named = _SPLIT.match(shard.name.lower())
        found.setdefault(NAMED_SPLITS[named[1]] if named else "", []).append(shard)
    if "" in found and len(found) > 1:
        raise ValueError(
            f"{found[''][0].name} of {source} belongs to no split: as the names of some shards "
            "begin with train, dev, val or test, all must; rename it"
        )
    return found
