"""Positives by text, the whole way: a dataset on disk, training, evaluation, a comparison."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest
import torch
from commands import here, refused
from numpy.typing import NDArray
from repeated import relation, write_repeated
from safetensors.torch import load_file
from small_runs import open_data
from torch import Tensor

from gradspace.analysis.cocos import cocos
from gradspace.data.batches import Batch
from gradspace.data.dataset import Split
from gradspace.models import PairScorer
from gradspace.runs.finish import evaluate_run
from gradspace.runs.folder import create_run, open_run
from gradspace.runs.numbers import BY_TEXT, check_metric
from gradspace.runs.recipe import Recipe, make_recipe
from gradspace.runs.results import load_results
from gradspace.runs.system import new_system
from gradspace.training.caching import BatchOutcome
from gradspace.training.loop import Trainer
from gradspace.training.monitor import Monitor

TABLES: dict[str, Any] = {
    "model": {"name": "vse++", "width": 16, "word_width": 8},
    "objective": {"name": "nt-xent", "positives": "text"},
    "training": {"epochs": 1, "batch_size": 20, "track_every": 1},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder, features = write_repeated(tmp_path_factory.mktemp("repeated"))
    rows = np.load(features)
    np.save(features, np.stack([rows, rows[::-1]], 1))  # two regions of an image, for scan
    return {"source": str(folder), "features": str(features)}


@pytest.fixture(scope="module")
def trained(data: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run by the command line, and its mined lists."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    settings = {
        **{f"data.{key}": value for key, value in data.items()},
        **{
            f"{table}.{key}": value for table, keys in TABLES.items() for key, value in keys.items()
        },
    }
    told = here("train", "--out", folder, *(f"--set={key}={v}" for key, v in settings.items()))
    assert told.returncode == 0, told.stderr
    told = here("mine", folder, "--top-texts", "9", "--top-images", "5")
    assert told.returncode == 0, told.stderr
    return folder


def truth_of(split: Split) -> NDArray[np.bool_]:
    owners = split.image_of_caption.tolist()
    return np.array(relation(list(split.captions), owners, len(split.image_names)))


def first_batch(recipe: Recipe, folder: Path) -> tuple[Trainer, Batch, BatchOutcome]:
    dataset, run = open_data(recipe), create_run(folder, recipe)
    system = new_system(recipe, dataset, run, torch.device("cpu"))
    trainer = Trainer(recipe, dataset, system, run, Monitor(None, 0))
    batch = next(iter(trainer.batches()))
    return trainer, batch, trainer._backward(batch)


def scores_of(trainer: Trainer, batch: Batch, found: BatchOutcome) -> tuple[Tensor, Tensor]:
    """Scores of all images of a batch with all its texts, and which belong together."""
    model = trainer.system.model
    if isinstance(model, PairScorer):
        with torch.no_grad():
            scores = model.score(found.images, found.texts, batch.lengths)
    else:
        scores = found.images @ found.texts.t()
    truth = torch.from_numpy(truth_of(trainer.dataset.splits["train"]))
    return scores, truth[batch.image_ids][:, batch.captions]


def mean_of_both(values: list[list[float]]) -> float:
    return sum(sum(side) / len(side) for side in values) / 2


@pytest.mark.parametrize("model", ["vse++", "scan"])
def test_a_batch_is_that_of_loops(model: str, data: dict[str, str], tmp_path: Path) -> None:
    recipe = make_recipe({**TABLES, "data": data, "model": {**TABLES["model"], "name": model}})
    trainer, batch, found = first_batch(recipe, tmp_path / "run")
    scores, truth = scores_of(trainer, batch, found)
    assert truth.sum() > (batch.image_ids[:, None] == batch.text_ids).sum()
    sides = ((scores, truth), (scores.t(), truth.t()))
    values = [oracles.loss_values("nt-xent", s.tolist(), t.tolist()) for s, t in sides]
    assert found.loss.item() == pytest.approx(mean_of_both(values), rel=1e-5)
    counted = trainer.batch_loss.contributions(found, batch)["image_to_text"]
    assert counted == asdict(cocos(trainer.parts.loss.objective, scores, truth))


@pytest.mark.parametrize("model", ["vse++", "scan"])
def test_mined_items_that_belong_to_a_query_are_left_out(
    model: str, data: dict[str, str], trained: Path, tmp_path: Path
) -> None:
    lists = {"lists": str(trained / "lists.safetensors"), "num_texts": 9, "num_images": 5}
    tables = {**TABLES, "data": data, "model": {**TABLES["model"], "name": model}}
    trainer, batch, found = first_batch(make_recipe({**tables, "offline": lists}), tmp_path / "run")
    scores, truth = scores_of(trainer, batch, found)
    n = len(scores) // 3
    values = []
    for score, true in ((scores, truth), (scores.t(), truth.t())):
        side = []
        for row, positive in zip(score[:n].tolist(), true[:n].tolist(), strict=True):
            kept = [*range(n), *(k for k in range(n, 3 * n) if not positive[k])]
            mask = [positive[k] and k < n for k in kept]
            side += oracles.loss_values("nt-xent", [[row[k] for k in kept]], [mask])
        values.append(side)
    assert found.loss.item() == pytest.approx(mean_of_both(values), rel=1e-5)
    assert trainer.batch_loss.contributions(found, batch)["offline"]


def test_lists_have_no_caption_of_the_same_words(data: dict[str, str], trained: Path) -> None:
    recipe = make_recipe({**TABLES, "data": data})
    lists = load_file(trained / "lists.safetensors")
    truth = torch.from_numpy(truth_of(open_data(recipe).splits["train"]))
    assert not truth.gather(1, lists["texts_of_image"].long()).any()
    assert not truth.t().gather(1, lists["images_of_text"].long()).any()


def test_evaluation_reports_them_beside_the_plain_numbers(
    data: dict[str, str], trained: Path, tmp_path: Path
) -> None:
    told = json.loads(here("evaluate", trained, "--json").stdout)
    assert here("embed", trained, "--out", tmp_path / "vectors").returncode == 0
    vectors = load_file(tmp_path / "vectors")
    scores = vectors["images"] @ vectors["texts"].t()
    split = open_data(make_recipe({**TABLES, "data": data})).splits["test"]
    own = np.arange(len(split.image_names))[:, None] == split.image_of_caption
    for report, positive in ((told, own), (told["by_text"], truth_of(split))):
        for way, s, mask in (
            ("image_to_text", scores, torch.from_numpy(positive)),
            ("text_to_image", scores.t(), torch.from_numpy(positive).t()),
        ):
            assert report[way]["recall"]["1"] == pytest.approx(recall_by_loops(s, mask, 1))
            assert report[way]["recall"]["5"] == pytest.approx(recall_by_loops(s, mask, 5))
    assert told["by_text"]["rsum"] > told["rsum"]
    shown = here("evaluate", trained).stdout
    assert "with equal captions of other images as positives too:" in shown
    assert shown.count("rsum") == 2


def recall_by_loops(scores: Tensor, positive: Tensor, k: int) -> float:
    """Half of the ties stand before a query's best positive."""
    hits = 0
    for row, mask in zip(scores.tolist(), positive.tolist(), strict=True):
        best = max(s for s, true in zip(row, mask, strict=True) if true)
        others = [s for s, true in zip(row, mask, strict=True) if not true]
        rank = 1 + sum(s > best for s in others) + sum(s == best for s in others) / 2
        hits += rank <= k
    return 100 * hits / len(scores)


def test_a_comparison_can_have_columns_of_both(data: dict[str, str], trained: Path) -> None:
    run, dataset = open_run(trained), open_data(make_recipe({**TABLES, "data": data}))
    evaluate_run(run, dataset, torch.device("cpu"))
    measured = load_results(run.results("test", 1)).metrics
    told = json.loads(here("evaluate", trained, "--json").stdout)
    for name in BY_TEXT:
        check_metric(name)
    assert measured["rsum by text"] == pytest.approx(told["by_text"]["rsum"])
    recall = told["by_text"]["text_to_image"]["recall"]["5"]
    assert measured["t2i R@5 by text"] == pytest.approx(recall)
    assert measured["rsum"] == pytest.approx(told["rsum"])


def test_a_model_that_draws_negatives_by_image_is_refused(data: dict[str, str]) -> None:
    told = refused(
        *("train", "--data", data["source"], "--set", f"data.features={data['features']}"),
        *("--model", "fusion", "--set", "objective.positives=text"),
    )
    assert 'objective.positives = "text" is not for fusion, whose matching' in told
