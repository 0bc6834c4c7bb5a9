"""`gradspace mine` as a user types it, and a first and a second round by one recipe."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from small_runs import open_data, train_small
from typer.testing import CliRunner

from gradspace.cli import app
from gradspace.comparison.results import load_table
from gradspace.mining import load_lists
from gradspace.runs.folder import Run
from gradspace.runs.represent import embed_split
from gradspace.runs.system import load_system
from gradspace.scores.represented import save_embeddings

ROUNDS = """
title = "Two rounds"
seeds = 1
metrics = ["i2t R@1", "rsum", "seconds per batch"]
[recipe.training]
epochs = 2
batch_size = 32
track_every = 5
[recipe.offline]
num_texts = 30
num_images = 10
[datasets.scenes]
regions = { source = "scenes", num_train = 64, num_dev = 40, num_test = 40 }
[models."VSE++"]
reads = "regions"
model = { name = "vse++", width = 32, word_width = 16 }
[objectives.triplet]
[objectives.offline-triplet]
after = "triplet"
[objectives."nt-xent, mined"]
after = "triplet"
objective = { name = "nt-xent" }
offline = { draw = "normal", shared = false }
"""


def run(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "300"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_small(tmp_path_factory.mktemp("mined") / "run", training={"epochs": 1})


SIZES = ("--top-texts", "30", "--top-images", "12")


def test_mine_audit_and_train(trained: Run, tmp_path: Path) -> None:
    output = run("mine", trained.folder, *SIZES, "--audit")
    lists = trained.folder / "lists.safetensors"
    assert f"train with --offline-negatives {lists}" in output
    assert "listed items that are truly relevant" in output
    ranks = [(int(a), int(b)) for a, b in re.findall(r"^ +(\d+)-(\d+) ", output, re.MULTILINE)]
    assert ranks == [(1, 5), (6, 10), (11, 12), (11, 20), (21, 30)]
    assert load_lists(lists).record["source"]["dataset"] == "scenes"
    page = lists.with_suffix(".html").read_text()
    assert "data:image/jpeg" in page
    told = json.loads(run("mine", trained.folder, *SIZES, "--audit", "--json"))["audit"]
    assert set(told["false_negatives"]) == {"captions", "images"}
    sections = page.split('<section id="errors"')
    for section, name in zip(sections, ("likely_false_negatives", "model_errors"), strict=True):
        captions = re.findall('<p class="caption">(.*?)</p>', section)
        assert len(captions) == len(set(captions)) == told[name]["number"], "each caption once"
        assert section.count("listed as negative <b>") == len(captions)
        number, share = told[name]["number"], told[name]["truly_relevant"]
        assert number > 5
        assert f"{number} {name.replace('_', ' ')} ({share:.1%} truly relevant)" in output
    done = run(
        *("train", "--objective", "offline-quintuplet", "--offline-negatives", lists),
        *("--set", "data.num_train=64", "--set", "data.num_dev=40", "--set", "data.num_test=40"),
        *("--set", "model.width=32", "--set", "model.word_width=16", "--init", trained.folder),
        *("--set", "offline.num_texts=30", "--set", "offline.num_images=10"),
        *("--set", "training.epochs=1", "--batch", "32", "--out", tmp_path / "second"),
    )
    assert "gradspace evaluate" in done.rpartition("done: ")[2]


def test_any_embeddings_can_be_mined(trained: Run, tmp_path: Path) -> None:
    split = open_data(trained.recipe()).splits["train"]
    found = embed_split(load_system(trained.folder, torch.device("cpu")), split)
    save_embeddings(tmp_path / "vectors.safetensors", found)
    out = tmp_path / "lists.safetensors"
    run("mine", tmp_path / "vectors.safetensors", *SIZES, "--out", out)
    run("mine", trained.folder, *SIZES, "--out", tmp_path / "of-run.safetensors")
    lists, same = load_lists(out), load_lists(tmp_path / "of-run.safetensors")
    assert (lists.texts_of_image == same.texts_of_image).all()
    with pytest.raises(ValueError, match=r"top_texts is 1000.*at most"):
        run("mine", trained.folder, "--top-texts", "1000", "--out", out)
    with pytest.raises(ValueError, match="has no split 'val', only train, dev, test"):
        run("mine", trained.folder, "--split", "val", "--out", out)


@pytest.mark.slow
def test_two_rounds_by_one_recipe(tmp_path: Path) -> None:
    recipe, out = tmp_path / "rounds.toml", tmp_path / "out"
    recipe.write_text(ROUNDS)
    output = run("compare", recipe, "--out", out)
    assert output.count("finished") == 3
    rows = load_table(out / "results.parquet")
    timed = {row.objective for row in rows if row.metric == "seconds per batch"}
    assert timed == {"triplet", "offline-triplet", "nt-xent, mined"}
    first = Run(out / "runs/scenes/VSE++/triplet/seed-0")
    second = Run(out / "runs/scenes/VSE++/offline-triplet/seed-0")
    assert second.offline.read_bytes() == (first.folder / "lists-30-10.safetensors").read_bytes()
    assert not first.offline.exists()
    only = 'extends = "rounds.toml"\nonly = { objective = ["offline-triplet"] }'
    (tmp_path / "part.toml").write_text(only)
    part = run("compare", tmp_path / "part.toml", "--out", tmp_path / "part")
    assert part.count("finished") == 2, "the first round is run, although no table shows it"
    assert "offline-triplet" in part
