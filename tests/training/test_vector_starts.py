"""Runs whose words start from a file: what starts there, and that a run needs it only once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import here, refused
from small_runs import open_data, small_recipe

from gradspace.comparison.grid import cells
from gradspace.comparison.needs import find_needs
from gradspace.comparison.recipe import load_comparison
from gradspace.data.vocabulary import Vocabulary
from gradspace.models.text import GRUEncoder
from gradspace.runs.folder import create_run
from gradspace.runs.system import System, load_system, new_system

CPU = torch.device("cpu")
SMALL = ["--set=data.num_train=64", "--set=data.num_dev=40", "--set=data.num_test=40"]
KNOWN = ("a", "ball", "red", "the", "two", "of", "is")


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    lines = [f"{word} {' '.join(f'{v:.4f}' for v in rng.normal(size=16))}" for word in KNOWN]
    path = tmp_path / "vectors.txt"
    path.write_text("\n".join(lines))
    return path


def systems(folder: Path, vectors: Path, **tables: Any) -> tuple[System, System, Vocabulary]:
    """With the vectors and without, and the words of both."""
    made = []
    for name, model in (("with", {"word_vectors": str(vectors)}), ("without", {})):
        more = {**tables, "model": {**tables.get("model", {}), **model}}
        recipe = small_recipe(**more)
        run = create_run(folder / name, recipe)
        made.append(new_system(recipe, open_data(recipe), run, CPU))
    return made[0], made[1], Vocabulary.load(folder / "with" / "vocabulary.json")


QUESTIONS = {"source": "questions", "num_train": 64, "num_dev": 20, "num_test": 20}


@pytest.mark.parametrize(
    "model",
    ["vse++", "vsrn", "vse-infinity", "scan", "bfan", "fusion", "text-dual"],
)
def test_words_of_the_file_start_there_and_all_else_as_before(
    model: str, vectors: Path, tmp_path: Path
) -> None:
    tables: dict[str, Any] = {"model": {"name": model}}
    if model == "text-dual":
        tables = {"model": {"name": model, "shared": False}, "data": QUESTIONS}
    found, plain, words = systems(tmp_path, vectors, **tables)
    rows = dict(line.split(" ", 1) for line in vectors.read_text().splitlines())
    known = [number for word, number in words.numbers.items() if word in rows]
    assert 1 < len(known) < len(words.numbers)
    counts = f"{len(known)} of {len(words.numbers):,} words"
    assert found.note == f"{counts} start from the vectors of {vectors}"
    assert not plain.note
    before = dict(plain.model.named_modules())
    encoders = [(n, m) for n, m in found.model.named_modules() if isinstance(m, GRUEncoder)]
    assert len(encoders) == (2 if model == "text-dual" else 1)
    for name, encoder in encoders:
        old = before[name]
        assert isinstance(old, GRUEncoder)
        for number in range(len(words)):
            word, row = words.words[number], encoder.embedding.weight[number]
            if number in known:
                expected = torch.tensor([float(value) for value in rows[word].split()])
                torch.testing.assert_close(row.detach(), expected)
            else:
                assert torch.equal(row, old.embedding.weight[number])
    after, without = found.model.state_dict(), plain.model.state_dict()
    differ = [key for key in after if not torch.equal(after[key], without[key])]
    assert differ == [f"{name}.embedding.weight" for name, _ in encoders]


@pytest.mark.slow
def test_a_run_does_not_need_the_file_again(vectors: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = {"word_vectors": vectors, "word_width": 16, "width": 32}
    model = [f"--set=model.{key}={value}" for key, value in settings.items()]
    training = ["--set=training.epochs=1", "--batch", "32"]
    done = here("train", "--data", "scenes", *SMALL, *model, *training, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "words start from the vectors of" in " ".join(done.stdout.split())
    vectors.unlink()
    assert here("evaluate", out).returncode == 0
    resumed = here("train", "--resume", out)
    assert resumed.returncode == 0, resumed.stderr
    assert "nothing is left" in resumed.stdout
    load_system(out, CPU)
    told = here("train", out / "recipe.toml", "--init", out, "--out", tmp_path / "more")
    assert told.returncode == 0, told.stderr


def test_refusals(vectors: Path, tmp_path: Path) -> None:
    start = ["train", "--data", "scenes", *SMALL, f"--set=model.word_vectors={vectors}"]
    told = refused(*start, "--out", tmp_path / "a")
    assert told.endswith("of width 16, and model.word_width is 300: set model.word_width=16")
    assert not (tmp_path / "a").exists()
    told = refused(*start, "--set=model.text_encoder=bert", "--out", tmp_path / "b")
    assert "model.word_vectors are for a GRU over words" in told


def test_a_comparison_says_that_it_needs_the_file(tmp_path: Path) -> None:
    path = tmp_path / "words.toml"
    path.write_text(
        """
        title = "Words"
        [datasets.scenes]
        regions = { source = "scenes" }
        [models."VSE++"]
        reads = "regions"
        model = { name = "vse++", word_vectors = "glove.txt" }
        [objectives.nt-xent]
        """
    )
    comparison, _ = load_comparison(path)
    [need] = find_needs(comparison, cells(comparison, str(path)))
    assert (need.what, need.there) == ("glove.txt", False)
