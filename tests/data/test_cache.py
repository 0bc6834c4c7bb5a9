from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gradspace.data.cache import STALE_SECONDS, cache_folder, made_once


def write(folder: Path) -> None:
    (folder / "content").write_text("all of it")


def test_things_are_made_once(tmp_path: Path) -> None:
    assert made_once(tmp_path / "deep" / "thing", write) == tmp_path / "deep" / "thing"
    made_once(tmp_path / "deep" / "thing", lambda folder: pytest.fail("made again"))
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["thing"]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        write(folder)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        made_once(tmp_path / "thing", fail)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_many_at_once_get_the_same(tmp_path: Path) -> None:
    def slowly(folder: Path) -> None:
        write(folder)
        time.sleep(0.05)

    with ThreadPoolExecutor(8) as threads:
        made = set(threads.map(lambda _: made_once(tmp_path / "thing", slowly), range(8)))
    assert made == {tmp_path / "thing"}
    assert [path.name for path in tmp_path.iterdir()] == ["thing"]
    assert (tmp_path / "thing" / "content").read_text() == "all of it"


def test_what_killed_processes_left_is_removed_a_day_later(tmp_path: Path) -> None:
    for name, age in [(".thing.old", 2 * STALE_SECONDS), (".thing.new", 1), (".other", 10**6)]:
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    made_once(tmp_path / "thing", write)
    assert {path.name for path in tmp_path.iterdir()} == {"thing", ".thing.new", ".other"}


def test_the_cache_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADSPACE_CACHE", "/somewhere")
    assert cache_folder() == Path("/somewhere")
    monkeypatch.delenv("GRADSPACE_CACHE")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder() == Path("/home/someone/.cache/gradspace")
