"""Record of the shards that a run on a stream reads, in its folder."""

from __future__ import annotations

import json

from gradspace import processes
from gradspace.data.json_files import read_json
from gradspace.data.shards.store import Shards
from gradspace.files import write_atomically
from gradspace.runs.folder import Run

Noted = tuple[str, int, str | None]
"""Name, size in bytes and, once it was read, content hash of a shard."""


def note_shards(run: Run, shards: Shards) -> None:
    """Record the shards; their content becomes known while a run reads them."""
    if processes.is_first():
        with write_atomically(run.folder / "shards.json") as file:
            json.dump(_noted(shards), file)


def check_shards(run: Run, shards: Shards) -> None:
    """Raise a ValueError unless the shards are those that a run started with.

    If some were added, removed or replaced, a resumed run would continue with other samples.
    """
    file = run.folder / "shards.json"
    if not file.exists():
        return
    began: list[Noted] = read_json(file, list[Noted], "the shards of a run")
    now = _noted(shards)
    other = next((a for a, b in zip(began, now, strict=False) if a[:2] != b[:2]), None)
    if other is not None or len(began) != len(now):
        first = f"; the first that differs was {other[0]} of {other[1]:,} bytes" if other else ""
        raise ValueError(
            f"{run.folder} started with {len(began)} shards and there are {len(now)}{first}: "
            "restore them, or start a new run with --init"
        )
    shards.contents |= {n: known[2] for n, known in enumerate(began) if known[2] is not None}


def _noted(shards: Shards) -> list[Noted]:
    return [
        (source.name, source.num_bytes, shards.contents.get(number))
        for number, source in enumerate(shards.sources)
    ]
