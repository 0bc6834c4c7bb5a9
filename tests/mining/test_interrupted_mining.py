"""Mining processes that are really killed go on where they were, and end with the same bytes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from mining.made import odd_embeddings
from several import start_together, together

from gradspace.mining import mine_exact, mine_to_file
from gradspace.mining.lists import save_lists
from gradspace.mining.state import load_state
from gradspace.scores.represented import Embeddings

OPTIONS: dict[str, Any] = {"top_texts": 9, "top_images": 5, "tile": (2, 20), "save_every": 0}


def slowly(first_done: Path | None, killed_after: int | None) -> Callable[[int, int], None]:
    """A progress that gives the killer time, and notes where it began."""
    calls = count(1)

    def progress(done: int, _: int) -> None:
        if first_done and not first_done.exists():
            first_done.write_text(str(done))
        time.sleep(60 if next(calls) == killed_after else 0.03)

    return progress


def mine(
    path: Path,
    embeddings: Embeddings,
    first_done: Path | None = None,
    killed_after: int | None = None,
) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    progress = slowly(first_done, killed_after)
    mine_to_file(
        path, lambda state: mine_exact(embeddings, progress=progress, state=state, **OPTIONS)
    )


def start(*arguments: Any) -> ForkProcess:
    process = get_context("fork").Process(target=mine, args=arguments)
    process.start()
    return process


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def changed(file: Path) -> Callable[[], bool]:
    before = file.stat().st_mtime_ns if file.exists() else None
    return lambda: file.exists() and file.stat().st_mtime_ns != before


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_killed_again_and_again(how: signal.Signals, tmp_path: Path) -> None:
    embeddings = odd_embeddings(whole=False)
    path, state = tmp_path / "lists", tmp_path / "lists.state"
    for _ in range(3):
        process = start(path, embeddings, None, 3)
        for _ in range(2):
            wait_for(changed(state))
        assert process.pid is not None
        os.kill(process.pid, how)
        process.join()
        assert process.exitcode != 0
        assert not path.exists()
    last = start(path, embeddings, tmp_path / "first")
    last.join()
    assert last.exitcode == 0
    assert int((tmp_path / "first").read_text()) > 3 * 2  # images, 2 in a block
    assert not state.exists()
    save_lists(tmp_path / "whole", mine_exact(embeddings, **OPTIONS))
    assert path.read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.slow
def test_several_processes_killed(tmp_path: Path) -> None:
    embeddings = odd_embeddings(whole=False)
    path = tmp_path / "lists"
    states = [tmp_path / f"lists.state.{number}-of-2" for number in range(2)]
    started = start_together(2, mine, path, embeddings)
    wait_for(lambda: all(state.exists() for state in states))
    (tmp_path / ".lists.state.0-of-2.half").touch()  # as when killed while writing
    for process in started.processes:
        process.kill()
        process.join()
    assert not path.exists()
    together(2, mine, path, embeddings)
    assert sorted(tmp_path.iterdir()) == [path]
    save_lists(tmp_path / "whole", mine_exact(embeddings, **OPTIONS))
    assert path.read_bytes() == (tmp_path / "whole").read_bytes()


class StoppedError(Exception):
    pass


def stop_early(embeddings: Embeddings, state: Path, **options: Any) -> None:
    def progress(done: int, _: int) -> None:
        if done >= 10:
            raise StoppedError

    with pytest.raises(StoppedError):
        mine_exact(embeddings, state=state, progress=progress, **{**OPTIONS, **options})


def first_done(embeddings: Embeddings, state: Path, **options: Any) -> int:
    seen: list[int] = []
    options = {**OPTIONS, **options}
    found = mine_exact(
        embeddings, state=state, progress=lambda done, _: seen.append(done), **options
    )
    whole = mine_exact(embeddings, **options)
    assert (found.texts_of_image == whole.texts_of_image).all()
    assert (found.images_of_text == whole.images_of_text).all()
    return seen[0] if seen else -1


@pytest.mark.parametrize("what", ["images", "texts", "image_ids", "text_ids"])
def test_other_inputs_start_anew(what: str, tmp_path: Path) -> None:
    embeddings = odd_embeddings()
    stop_early(embeddings, tmp_path / "state")
    changed = getattr(embeddings, what).clone()
    changed[3] = changed[7]
    other = replace(embeddings, **{what: changed})
    assert first_done(other, tmp_path / "state") == 2


@pytest.mark.parametrize("options", [{"top_texts": 8}, {"top_images": 4}, {"tile": (2, 21)}])
def test_other_settings_start_anew(options: dict[str, Any], tmp_path: Path) -> None:
    stop_early(odd_embeddings(), tmp_path / "state")
    assert first_done(odd_embeddings(), tmp_path / "state", **options) == 2


def test_the_same_goes_on_and_a_finished_one_does_nothing(tmp_path: Path) -> None:
    stop_early(odd_embeddings(), tmp_path / "state")
    assert first_done(odd_embeddings(), tmp_path / "state") == 12
    assert first_done(odd_embeddings(), tmp_path / "state") == -1


def test_saves_are_seconds_apart(tmp_path: Path) -> None:
    stop_early(odd_embeddings(), tmp_path / "state", save_every=30.0)
    assert not (tmp_path / "state").exists()


def test_no_other_file_is_overwritten(tmp_path: Path) -> None:
    lists = tmp_path / "lists"
    save_lists(lists, mine_exact(odd_embeddings(), **OPTIONS))
    (tmp_path / "notes").write_text("mine")
    for file in (lists, tmp_path / "notes"):
        before = file.read_bytes()
        with pytest.raises(ValueError, match=f"{file.name} is not the state of an interrupted"):
            mine_exact(odd_embeddings(), state=file, **OPTIONS)
        assert file.read_bytes() == before
    assert load_state(tmp_path / "none", "") is None
    assert torch.get_num_threads() == 1  # bits are compared: see tests/conftest.py
