"""Everything that runs on a CPU gives the same numbers on a GPU; skipped where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from embedded import Embedded, embedded, outcome
from samples import Batch
from small_runs import open_data, small_recipe

import gradspace as gs
from benchmarks.case import Case
from benchmarks.gpu_launches import IDS, MOST_LAUNCHES, SUITE, call, count

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_objectives(name: str, batch: Batch) -> None:
    scores, positives = batch(1)
    objective = gs.objective(name)
    on_gpu = objective(scores.cuda(), positives.cuda())
    torch.testing.assert_close(on_gpu.cpu(), objective(scores, positives), rtol=1e-9, atol=1e-9)
    weights = gs.score_weights(objective, scores.cuda(), positives.cuda())
    expected = gs.score_weights(objective, scores, positives)
    torch.testing.assert_close(weights.cpu(), expected, rtol=1e-9, atol=1e-9)
    found = gs.cocos(objective, scores.cuda(), positives.cuda())
    assert vars(found) == pytest.approx(vars(gs.cocos(objective, scores, positives)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_loss_in_every_precision(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    images, texts = torch.randn(2, 12, 8, dtype=dtype).unbind()
    ids = torch.arange(12) // 2
    loss = gs.RetrievalLoss(name, normalize=True)
    on_cpu = loss(images, texts, ids, ids)
    on_gpu = loss(images.cuda(), texts.cuda(), ids.cuda(), ids.cuda())
    torch.testing.assert_close(on_gpu.cpu(), on_cpu, rtol=1e-3, atol=1e-3)


def test_metrics() -> None:
    torch.manual_seed(0)
    images, texts = torch.randn(50, 16), torch.randn(250, 16)
    ids = torch.arange(50)
    positives = gs.match_ids(ids, ids.repeat(5))
    on_cpu = gs.retrieval_report(gs.EmbeddingScores(images.double(), texts.double()), positives)
    on_gpu = gs.retrieval_report(gs.EmbeddingScores(images.cuda(), texts.cuda()), positives)
    assert on_gpu.rsum == pytest.approx(on_cpu.rsum)


def test_training(tmp_path: Path) -> None:
    from gradspace.runs.folder import create_run
    from gradspace.runs.system import prepare_system
    from gradspace.training import train_run
    from gradspace.training.monitor import Monitor

    for precision in ("float32", "bfloat16", "float16"):
        recipe = small_recipe(training={"precision": precision})
        dataset = open_data(recipe)
        run = create_run(tmp_path / precision, recipe)
        system = prepare_system(run, recipe, dataset, torch.device("cuda"))
        with Monitor(None, 0) as monitor:
            train_run(recipe, dataset, system, run, monitor)
        assert [line["epoch"] for line in run.metrics() if line["kind"] == "epoch"] == [0, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("execution", ["triton", "streamed"])
def test_executions(name: str, execution: Any, dtype: torch.dtype) -> None:
    """Several tiles, several chunks of them, and the same bits each time."""
    batch = embedded(num_images=700, num_texts=2100, width=100, dtype=dtype)
    batch = Embedded(*(part.cuda() for part in batch))
    exact = batch._replace(images=batch.images.double(), texts=batch.texts.double())
    expected = outcome(gs.RetrievalLoss(name, execution="dense"), exact)
    loss = gs.RetrievalLoss(name, execution=execution)
    found = outcome(loss, batch)
    rounding = {torch.float32: 2e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}[dtype]
    for got, wanted in zip(found, expected, strict=True):
        assert (got.double() - wanted).norm() <= rounding * wanted.norm()
    for first, second in zip(found, outcome(loss, batch), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("ids", IDS)
def test_a_call_launches_little_and_waits_for_nothing(name: str, ids: str) -> None:
    """At a batch that most people train with, a loss costs what its launches cost."""
    found = count(call(Case(SUITE, ids, name, 512, 1, 512), "cuda"))
    assert found.synchronisations == 0
    assert found.launches <= MOST_LAUNCHES
