"""The work of one process of several machines: tells who it is and which files it has opened.

on_a_node.py FOLDER train RECIPE    train, evaluate and mine by Python
on_a_node.py FOLDER run ARGUMENTS   the command line
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import gradspace as gs
from gradspace import processes
from gradspace.cli import main
from gradspace.runs.mine import mine


def note_writes(folder: Path) -> list[str]:
    """Record files opened for writing below a folder, apart from the state of a mining."""
    written: list[str] = []

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            path = str(arguments[0])
            if path.startswith(str(folder)) and ".state." not in path:
                written.append(path)

    sys.addaudithook(look)
    return written


def work(folder: Path, recipe: str) -> None:
    written = note_writes(folder / "run")
    with processes.group():
        run = gs.train(recipe, out=folder / "run", device="cpu")
        found = gs.evaluate(run.folder, device="cpu")
        lists = mine(run.folder, top_texts=5, top_images=5, device="cpu").lists
        told = {
            "rsum": found.report.rsum,
            "texts_of_image": lists.texts_of_image.tolist(),
            "written": written,
            "local_rank": processes.local_rank(),
            "world_size": processes.world_size(),
        }
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    place, what, *given = sys.argv[1:]
    (Path(place) / f"{os.environ['RANK']}.pid").write_text(str(os.getpid()))
    if what == "train":
        work(Path(place), *given)
        processes.leave(0)
    else:
        sys.argv[1:] = given
        main()
