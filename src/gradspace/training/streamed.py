"""What a run keeps of a stream: which shards it reads, and what could not be used."""

from __future__ import annotations

import json

from gradspace import processes
from gradspace.data.json_files import read_json
from gradspace.data.shards.store import Shards
from gradspace.files import write_atomically
from gradspace.runs.folder import Run


def hold_shards(run: Run, shards: Shards) -> None:
    """Note which shards a run reads, or see that they are the ones that it began with.

    Where shards were added, taken away or made anew, a resumed run would go on with other samples.
    """
    now = list(zip((path.name for path in shards.paths), shards.sizes, strict=True))
    file = run.folder / "shards.json"
    if not file.exists():
        if processes.is_first():
            with write_atomically(file) as out:
                json.dump(now, out)
        return
    began = read_json(file, list[tuple[str, int]], "the shards of a run")
    if now == began:
        return
    other = next((a for a, b in zip(began, now, strict=False) if a != b), None)
    first = f"; the first that differs was {other[0]} of {other[1]:,} bytes" if other else ""
    raise ValueError(
        f"{run.folder} began with {len(began)} shards and there are {len(now)}{first}: put them "
        "back as they were, or start a new run with --init"
    )
