"""Questions and passages through everything that images and captions go through."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from models import tiny
from small_runs import open_data, train_small
from typer.testing import CliRunner

from gradspace.cli import app
from gradspace.mining import load_lists
from gradspace.runs.embed import embed_captions, embed_passages, embed_pictures
from gradspace.runs.folder import Run
from gradspace.runs.represent import embed_split
from gradspace.runs.system import load_system

DATA = {"source": "questions", "num_train": 64, "num_dev": 40, "num_test": 40}
MODEL = {"name": "text-dual", "width": 32, "word_width": 16}

COMPARISON = """
title = "Two objectives"
seeds = 1
metrics = ["t2i R@1", "rsum"]
[recipe.training]
epochs = 1
batch_size = 32
[datasets.questions]
passages = { source = "questions", num_train = 64, num_dev = 40, num_test = 40 }
[models.GRU]
reads = "passages"
model = { name = "text-dual", width = 32, word_width = 16 }
[objectives.nt-xent]
[objectives.smooth-ap]
training = { captions_per_image = "all" }
"""


def run(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "300"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_small(tmp_path_factory.mktemp("passages") / "run", data=DATA, model=MODEL)


def test_a_run_is_evaluated_mined_and_trained_again(trained: Run, tmp_path: Path) -> None:
    assert "text" in run("evaluate", trained.folder, "--split", "test")
    lists = tmp_path / "lists.safetensors"
    run("mine", trained.folder, "--top-texts", "30", "--top-images", "10", "--out", lists)
    assert load_lists(lists).texts_of_image.shape == (64, 30)
    second = train_small(
        tmp_path / "second",
        data=DATA,
        model=MODEL,
        objective={"name": "offline-quintuplet"},
        training={"epochs": 1},
        offline={"lists": str(lists), "num_texts": 30, "num_images": 10},
    )
    assert second.best.exists()


def test_one_s_own_texts_are_embedded_as_the_split_is(trained: Run) -> None:
    system = load_system(trained.folder)
    split = open_data(trained.recipe()).splits["test"]
    assert split.passages is not None
    found = embed_split(system, split)
    own = embed_passages(system, split.passages[:3]), embed_captions(system, split.captions[:3])
    torch.testing.assert_close(own, (found.images[:3], found.texts[:3]), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="this run reads passages, not pictures"):
        embed_pictures(system, [])


@pytest.mark.slow
def test_chunks_give_the_same_run(trained: Run, tmp_path: Path) -> None:
    in_parts = train_small(tmp_path / "run", data=DATA, model=MODEL, training={"chunk": 12})
    (whole, parts) = ([line["loss"] for line in r.metrics()] for r in (trained, in_parts))
    assert parts == pytest.approx(whole, rel=1e-3)


def test_a_transformers_encoder_reads_both_sides(tmp_path: Path) -> None:
    bert = tiny.bert(tmp_path / "bert")
    made = train_small(
        tmp_path / "run",
        data=DATA,
        model={"name": "text-dual", "width": 16, "text_encoder": str(bert), "shared": False},
        training={"epochs": 1},
    )
    system = load_system(made.folder)
    assert embed_passages(system, ["the red dog runs", "two dogs"]).shape == (2, 16)


@pytest.mark.slow
def test_objectives_are_compared(tmp_path: Path) -> None:
    recipe = tmp_path / "small.toml"
    recipe.write_text(COMPARISON)
    shown = run("compare", recipe, "--out", tmp_path / "made", "--jobs", "1")
    assert "smooth-ap" in shown
    page = (tmp_path / "made" / "small.html").read_text()
    assert "everybody knows" in page, "passages are shown as they are"
    assert "features and no images" not in page


def test_models_of_images_and_other_inputs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"vse\+\+ reads images, but the data has passages: use text"
    ):
        train_small(tmp_path / "a", data=DATA)
    with pytest.raises(ValueError, match="needs images, and the dataset has only passages"):
        train_small(tmp_path / "b", data=DATA, model={"backbone": "microsoft/resnet-50"})
