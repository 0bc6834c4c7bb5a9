"""Every registered metric against its plain loop, and where it appears."""

from __future__ import annotations

from collections.abc import Iterator

import oracles
import pytest
import torch
from samples import random_batch

import gradspace as gs
from gradspace.comparison.recipe import Comparison
from gradspace.metrics import METRICS, PositiveRanks, metric, rank_rows
from gradspace.runs.numbers import check_metric, decimals, retrieval_metrics


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("name", METRICS)
def test_metrics_equal_their_loops(name: str, ties: bool) -> None:
    """Whatever the order of the queries, some of which have no positive."""
    expected = oracles.loop_of(oracles.METRICS, name)
    for seed in range(50):
        scores, positives = random_batch(seed, 5, 8, ties)
        found = METRICS[name].measure(rank_rows(scores, positives))
        assert found == pytest.approx(expected(scores.tolist(), positives.tolist()), abs=1e-12)
        order = torch.randperm(5, generator=torch.Generator().manual_seed(seed))
        again = METRICS[name].measure(rank_rows(scores[order], positives[order]))
        assert again == pytest.approx(found, abs=1e-12)


@pytest.fixture
def made_up() -> Iterator[None]:
    @metric("worst rank", heading="worst", decimals=2)
    def worst_rank(found: PositiveRanks) -> float:
        return float(found.finite_best.max())

    yield
    del METRICS["worst rank"]


@pytest.mark.usefixtures("made_up")
def test_a_decorated_function_is_in_reports_results_and_tables() -> None:
    scores, positives = random_batch(3, 6, 6)
    report = gs.retrieval_report(scores, positives)
    expected = float(gs.ranks(scores, positives)[positives.any(1)].max())
    assert report.image_to_text.metrics["worst rank"] == expected
    assert report.to_dict()["image_to_text"]["worst_rank"] == expected
    head, image_to_text, *_ = str(report).splitlines()
    assert head.endswith("   worst  queries")
    assert f"{expected:.2f}" in image_to_text
    halves = gs.retrieval_report(torch.eye(6), torch.eye(6).bool(), folds=2)
    assert halves.image_to_text.metrics["worst rank"] == 1

    assert retrieval_metrics(report)["i2t worst rank"] == expected
    assert decimals("i2t worst rank") == 2
    check_metric("t2i worst rank")
    axes = {"datasets": {"a": {"images": {}}}, "models": {"m": {"reads": "images"}}}
    axes |= {"objectives": {"triplet": {}}}
    Comparison.model_validate({"title": "t", "metrics": ["i2t worst rank"], **axes})


def test_names_of_other_metrics_are_refused() -> None:
    def average_recall(found: PositiveRanks) -> float:
        return 0.0

    def mean_rank(found: PositiveRanks) -> float:
        return 0.0

    def own(found: PositiveRanks) -> float:
        return 0.0

    for name, measure, taken in (
        ("mean rank", own, "mean rank"),
        ("R@7", own, "R@7"),
        ("average", own, "average"),
        ("other", mean_rank, "mean_rank"),
        ("other", average_recall, "average_recall"),
    ):
        with pytest.raises(ValueError, match=f"'{taken}' is the name of another metric: choose"):
            metric(name)(measure)


def test_how_a_report_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in METRICS.keys() - {"median rank", "mean rank", "mAP@5"}:
        monkeypatch.delitem(METRICS, name)
    report = gs.retrieval_report(torch.eye(4), torch.eye(4).bool())
    head, *lines = str(report).splitlines()
    assert head[15:] == "    R@1    R@5   R@10  average  median r   mean r  mAP@5  queries"
    assert {len(line) for line in (head, *lines[:2])} == {80}
    keys = ["recall", "average_recall", "median_rank", "mean_rank", "map_at_5", "num_queries"]
    assert list(report.to_dict()["text_to_image"]) == keys
