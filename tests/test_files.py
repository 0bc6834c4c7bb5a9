from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import gradspace as gs
from gradspace.analysis.score_file import load_scores
from gradspace.files import locked, write_atomically


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.txt"
    with write_atomically(path) as file:
        file.write("old")
    with pytest.raises(TypeError), write_atomically(path) as file:
        file.writelines(["half of the new", 7])
    assert path.read_text() == "old"
    assert [p.name for p in path.parent.iterdir()] == ["file.txt"]


def test_a_full_disk_is_named_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    with pytest.raises(OSError, match="No space") as refused, write_atomically(path):
        raise OSError(28, "No space left on device")
    assert refused.value.filename == str(path)
    assert list(tmp_path.iterdir()) == []


def test_one_at_a_time_makes_a_file(tmp_path: Path) -> None:
    path, made = tmp_path / "lists", list[int]()

    def make(number: int) -> None:
        with locked(path):
            if not path.exists():
                time.sleep(0.05)
                made.append(number)
                path.write_text("made")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(make, range(4)))
    assert len(made) == 1


def test_scores_come_back(tmp_path: Path) -> None:
    scores, ids = torch.rand(3, 6), torch.arange(3)
    gs.save_scores(tmp_path / "s", scores, ids, ids.repeat(2))
    saved = load_scores(tmp_path / "s")
    assert torch.equal(saved.scores, scores)
    assert saved.positives.pairs()[1].tolist() == [0, 3, 1, 4, 2, 5]


def test_bad_score_files_are_explained(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    save_file({"scores": torch.rand(3, 3)}, path)
    with pytest.raises(ValueError, match="lacks image_ids and text_ids"):
        load_scores(path)
    ids = torch.arange(3)
    save_file({"scores": torch.rand(3, 3), "image_ids": ids, "text_ids": ids[:2].clone()}, path)
    with pytest.raises(ValueError, match="text_ids has 2 entries for 3 columns of scores"):
        load_scores(path)
    gs.save_scores(path, torch.rand(3, 3), ids, ids)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ValueError, match="not a complete safetensors file"):
        load_scores(path)
    with pytest.raises(ValueError, match="no positive pair; check the ids"):
        gs.save_scores(path, torch.rand(3, 3), ids, ids + 10)
    with pytest.raises(ValueError, match="NaN or infinite values in 3 of 3 rows"):
        gs.save_scores(path, torch.full((3, 3), torch.nan), ids, ids)
