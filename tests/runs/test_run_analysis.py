"""The analysis of a finished run: COCOS over the whole training set against batches by hand."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import open_data, small_recipe, train_small

from gradspace.analysis.cocos import Cocos, Counting, cocos
from gradspace.comparison.compare import gather
from gradspace.data.order import epoch_order
from gradspace.metrics import retrieval_report
from gradspace.runs.analysis import analyse_run, load_analysis
from gradspace.runs.finish import evaluate_run
from gradspace.runs.folder import Run
from gradspace.runs.recipe import build_objective
from gradspace.runs.represent import embed_split
from gradspace.runs.system import load_system

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["triplet", "smooth-ap"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """With dropout, which must be off when it is analysed."""
    captions = {"captions_per_image": "all"} if request.param == "smooth-ap" else {}
    tables = {
        "objective": {"name": request.param},
        "training": {"epochs": 2, "batch_size": 16, **captions},
        "model": {"dropout": 0.5},
    }
    return train_small(tmp_path_factory.mktemp("analysed") / "run", **tables)


def test_counts_are_those_of_all_batches_at_the_best_weights(run: Run) -> None:
    recipe = run.recipe()
    dataset = open_data(recipe)
    evaluate_run(run, dataset, CPU)
    found = load_analysis(run.analysis)
    train, objective = dataset.splits["train"], build_objective(recipe)
    embedded = embed_split(load_system(run.folder, CPU), train)
    plans = epoch_order(
        train,
        batch_size=16,
        captions_per_image=recipe.training.captions_per_image,
        seed=0,
        epoch=0,
    )
    counts: dict[str, list[Cocos]] = {"image_to_text": [], "text_to_image": []}
    num_positives, num_hardest = 0, 0
    for plan in plans:
        scores = embedded.images[plan.images] @ embedded.texts[plan.captions].t()
        owner = train.image_of_caption[plan.captions]
        positives = torch.tensor([[bool(i == o) for o in owner] for i in plan.images])
        counts["image_to_text"].append(cocos(objective, scores, positives))
        counts["text_to_image"].append(cocos(objective, scores.t(), positives.t()))
        num_positives += 2 * int(positives.sum())
        num_hardest += 2 * int(positives.sum())
    assert found.num_batches == len(plans)
    for direction, batches in counts.items():
        for count in fields(Cocos):
            values = [getattr(batch, count.name) for batch in batches]
            told = found.cocos[direction][count.name]
            assert told["mean"] == pytest.approx(np.mean(values), abs=1e-6), count.name
            assert told["std"] == pytest.approx(np.std(values, ddof=1), abs=1e-6), count.name
    assert sum(found.positives) == num_positives
    assert sum(found.hardest) == num_hardest
    assert len(found.positives) == 100
    assert 0 < len(found.triplets) <= 1500


def test_a_run_is_counted_anew_where_something_else_counts(run: Run) -> None:
    dataset, counting = open_data(run.recipe()), Counting(0.02, "icr")
    evaluate_run(run, dataset, CPU)
    first = load_analysis(run.analysis)
    assert first.counting == Counting()
    _, [entry] = gather([run.folder], CPU, counting)
    assert entry.analysis.counting == counting
    assert load_analysis(run.analysis) == first, "what a run has stays"
    evaluate_run(run, dataset, CPU, counting=counting)
    again = load_analysis(run.analysis)
    assert (again.counting, again.cocos) == (counting, entry.analysis.cocos)
    assert (again.cocos == first.cocos) == (run.recipe().objective.name == "triplet")
    evaluate_run(run, dataset, CPU, counting=Counting())
    assert load_analysis(run.analysis) == first


def test_results_are_those_of_evaluate(run: Run) -> None:
    dataset = open_data(run.recipe())
    evaluate_run(run, dataset, CPU)
    _, [entry] = gather([run.folder], CPU)
    embedded = embed_split(load_system(run.folder, CPU), dataset.splits["test"])
    report = retrieval_report(embedded.scores(), embedded.positives())
    assert entry.value("rsum") == pytest.approx(report.rsum)
    assert entry.value("i2t R@1") == pytest.approx(report.image_to_text.recall[1])
    assert entry.value("t2i mAP@5") == pytest.approx(report.text_to_image.map_at_5)
    total = sum(entry.value(f"cross rank {ranks}") for ranks in report.cross_rank)
    assert total == pytest.approx(100)


def test_a_broken_analysis_is_one_sentence(tmp_path: Path) -> None:
    for text in ("{", "{}", "[]"):
        (tmp_path / "analysis.json").write_text(text)
        with pytest.raises(ValueError, match="is not the analysis of a run"):
            load_analysis(tmp_path / "analysis.json")


def test_it_is_json(run: Run) -> None:
    recipe = run.recipe()
    train = open_data(recipe).splits["train"]
    embedded = embed_split(load_system(run.folder, CPU), train)
    found = analyse_run(build_objective(recipe), embedded, train, recipe.training)
    assert json.loads(json.dumps(asdict(found)))["objective"] == recipe.objective.name
    assert small_recipe().training.batch_size > 16, "the run's own batch size is used"
