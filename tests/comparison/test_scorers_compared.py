"""Two rounds of a model that scores pairs beside one that embeds, in a comparison and a report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from training.test_pair_scorers import ADAPTIVE, parts_of, run

from gradspace.comparison.results import load_table
from gradspace.metrics import retrieval_report
from gradspace.runs.folder import Run
from gradspace.runs.results import load_results

ROUNDS = """
title = "Two rounds of BFAN beside VSE++"
seeds = 1
metrics = ["i2t R@1", "rsum", "i2t C^q"]
[recipe.training]
epochs = 1
batch_size = 16
track_every = 5
[recipe.offline]
num_texts = 30
num_images = 10
[datasets.scenes]
regions = { source = "scenes", num_train = 32, num_dev = 20, num_test = 20 }
[models.BFAN]
reads = "regions"
model = { name = "bfan", width = 32, word_width = 16 }
[models."VSE++"]
reads = "regions"
model = { name = "vse++", width = 32, word_width = 16 }
[objectives.triplet]
[objectives.adaptive-offline-quintuplet]
after = "triplet"
"""


@pytest.mark.slow
def test_two_rounds_in_a_comparison_and_its_report(tmp_path: Path) -> None:
    recipe, out = tmp_path / "rounds.toml", tmp_path / "out"
    recipe.write_text(ROUNDS)
    run("compare", recipe, "--out", out, "--jobs", "1", "--device", "cpu")
    rows = load_table(out / "results.parquet")
    assert {(row.model, row.objective) for row in rows} == {
        (model, objective) for model in ("BFAN", "VSE++") for objective in ("triplet", ADAPTIVE)
    }
    trained = next(out.rglob("BFAN/adaptive-offline-quintuplet/seed-0"))
    results = load_results(Run(trained).results("test", 1))
    found = parts_of(Run(trained), "test")
    report = retrieval_report(found.scores(), found.positives())
    assert results.metrics["rsum"] == pytest.approx(report.rsum)
    analysis = json.loads(Run(trained).analysis.read_text())
    assert len(analysis["positives"]) == 200
    assert sum(analysis["positives"]) > 0
    run("report", trained, trained.parents[1] / "triplet" / "seed-0", "--out", tmp_path / "r.html")
    assert "There are no examples here" not in (tmp_path / "r.html").read_text()
