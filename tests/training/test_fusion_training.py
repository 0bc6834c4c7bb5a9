"""Fusion from training to re-ranking: what it learns beyond embeddings, and what reaches it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import open_data, small_recipe, train_small
from torch import Tensor
from typer.testing import CliRunner

import gradspace as gs
from gradspace.cli import app
from gradspace.metrics import retrieval_report
from gradspace.models import ImageInput, TextInput, fusion
from gradspace.models.encoders import Encoders
from gradspace.models.fusion import Fusion
from gradspace.models.matching import MatchingPairs, draw_pairs
from gradspace.runs.finish import RERANKED, evaluate_run
from gradspace.runs.folder import Run, create_run
from gradspace.runs.mine import mine_run
from gradspace.runs.represent import embed_split, rerank_split
from gradspace.runs.results import load_results
from gradspace.runs.system import load_system, new_system
from gradspace.scores.represented import Embeddings, Parts
from gradspace.scores.tiles import EmbeddingScores
from gradspace.scores.two_stage import TwoStageScores
from gradspace.training import train_run
from gradspace.training.loop import Trainer
from gradspace.training.monitor import Monitor

CPU = torch.device("cpu")
FUSION = {"name": "fusion", "width": 32, "word_width": 16, "num_fusion_layers": 1}


# --- what it learns -------------------------------------------------------------------------------


def pairs_of_things() -> tuple[Tensor, Tensor, Tensor]:
    """Two things each, of a colour and a shape: regions, and the four words for them.

    A red cube with a blue ball, and a red ball with a blue cube, have the same mean of regions.
    """
    kinds = [(colour, shape) for colour in range(4) for shape in range(4)]
    pairs = [(a, b) for a in kinds for b in kinds if a[0] < b[0] and a[1] != b[1]]
    regions = torch.zeros(len(pairs), 2, 8)
    tokens = []
    for image, pair in zip(regions, pairs, strict=True):
        for region, (colour, shape) in zip(image, pair, strict=True):
            region[[colour, 4 + shape]] = 1
        tokens.append([1, *(word for c, s in pair for word in (3 + c, 7 + s)), 2])
    return regions, torch.tensor(tokens), torch.full((len(pairs),), 6)


@pytest.mark.slow
def test_re_ranking_tells_apart_what_the_embeddings_cannot() -> None:
    """Half of the first places are right by chance; the fusion puts the two in order."""
    torch.manual_seed(0)
    regions, tokens, lengths = pairs_of_things()
    model = Fusion(
        ImageInput(shape=(2, 8)),
        TextInput(vocabulary_size=11),
        encoders=Encoders(width=32, word_width=16),
    )
    optimizer, loss = torch.optim.Adam(model.parameters(), lr=1e-3), gs.RetrievalLoss("nt-xent")
    for _ in range(350):
        value = loss(*model(regions, tokens, lengths))
        extra = model.extra_loss()
        assert extra is not None
        optimizer.zero_grad()
        torch.autograd.backward(value + extra)
        optimizer.step()
    with torch.no_grad():
        images, texts = model.eval()(regions, tokens, lengths)
        words = model.parts_of_texts(tokens, lengths)
    proposed = EmbeddingScores(images, texts)
    parts = Parts(
        scorer=model,
        images=model.parts_of_images(regions),
        words=words.flatten(0, 1),
        lengths=lengths,
        image_ids=torch.arange(len(images)),
        text_ids=torch.arange(len(images)),
        image_names=[],
        captions=[],
        device=CPU,
    )
    before = retrieval_report(proposed, parts.positives())
    for weight in (0.0, model.proposal_weight):
        scores = TwoStageScores(proposed, parts.scores(), 2, weight)
        after = retrieval_report(scores, parts.positives())
        assert after.image_to_text.recall[1] >= 80
        assert after.text_to_image.recall[1] >= 80
    assert before.image_to_text.recall[1] <= 60


@pytest.mark.slow
def test_re_ranking_knows_the_scenes_it_was_trained_on(tmp_path: Path) -> None:
    recipe = small_recipe(
        data={"num_train": 40, "num_dev": 10, "num_test": 10},
        model={**FUSION, "width": 64, "num_fusion_layers": 2},
        objective={"name": "nt-xent"},
        training={"epochs": 40, "warm_up_steps": 30, "decay_epochs": []},
    )
    dataset = open_data(recipe)
    run = create_run(tmp_path / "run", recipe)
    system = new_system(recipe, dataset, run, CPU)
    with Monitor(None, 0) as monitor:
        train_run(recipe, dataset, system, run, monitor)
    losses = [line["loss"] for line in run.metrics() if line["kind"] == "epoch"]
    assert losses[-1] < 0.3 * losses[0]
    split = dataset.splits["train"]
    found = embed_split(system, split)
    embedded = retrieval_report(found.scores(), found.positives())
    reranked = retrieval_report(rerank_split(system, split, found, 8), found.positives())
    assert reranked.rsum >= 0.95 * embedded.rsum


# --- from a run to its numbers --------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("fusion") / "run"
    return train_small(folder, model=FUSION, objective={"name": "nt-xent"})


def evaluated(*arguments: str) -> Any:
    told = CliRunner().invoke(app, ["evaluate", *arguments, "--json"])
    assert told.exit_code == 0, told.output
    return json.loads(told.stdout)


def test_a_run_proposes_for_itself(run: Run) -> None:
    system = load_system(run.folder, CPU)
    split = open_data(run.recipe()).splits["test"]
    found = embed_split(system, split)
    assert isinstance(found, Embeddings)
    expected = retrieval_report(rerank_split(system, split, found, 5), found.positives())
    told = evaluated(str(run.folder), "--rerank", "5")
    assert told["rsum"] == pytest.approx(expected.rsum)
    plain = evaluated(str(run.folder))
    assert plain["text_to_image"]["recall"]["5"] == told["text_to_image"]["recall"]["5"]
    losses = [line["loss"] for line in run.metrics() if line["kind"] == "epoch"]
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_a_comparison_judges_what_it_has_put_in_order(run: Run) -> None:
    evaluate_run(run, open_data(run.recipe()), CPU)
    told = evaluated(str(run.folder), "--rerank", str(RERANKED))
    metrics = load_results(run.results("test", 1)).metrics
    assert metrics["rsum"] == pytest.approx(told["rsum"])
    assert metrics["i2t R@1"] == pytest.approx(told["image_to_text"]["recall"]["1"])


@pytest.mark.slow
def test_all_candidates_are_ordered_by_their_scores(run: Run) -> None:
    system = load_system(run.folder, CPU)
    assert isinstance(system.model, Fusion)
    split = open_data(run.recipe()).splits["test"]
    found = embed_split(system, split)
    alone = rerank_split(system, split, found, 1000, proposal_weight=0)
    torch.testing.assert_close(alone.by_image.matrix, alone.by_text.matrix.t())
    torch.testing.assert_close(alone.by_image.matrix, alone.scorer.matrix().matrix)
    both = alone.scorer.matrix().matrix + found.images @ found.texts.t() / 0.07
    scores = rerank_split(system, split, found, 1000)
    torch.testing.assert_close(scores.by_image.matrix, both, rtol=1e-4, atol=1e-4)


def test_what_cannot_re_rank_says_so(run: Run, tmp_path: Path) -> None:
    plain = train_small(tmp_path / "plain", training={"epochs": 1})
    folder, other = str(run.folder), str(plain.folder)
    for arguments, message in (
        ([other, "--rerank", "5"], "vse++ embeds and does not score pairs"),
        ([folder, other, "--rerank", "5"], "--rerank is for one run"),
        ([folder, "--rerank", "5", "--propose", other], "give --propose or --rerank, not both"),
        ([folder, "--rerank", "5", "--eccv"], "--eccv ranks all candidates"),
    ):
        told = CliRunner().invoke(app, ["evaluate", *arguments])
        assert message in str(told.exception)


# --- what reaches it ------------------------------------------------------------------------------

Make = Callable[..., Trainer]


@pytest.fixture
def trainer(tmp_path: Path) -> Make:
    number = 0

    def make(**tables: Any) -> Trainer:
        nonlocal number
        number += 1
        recipe = small_recipe(model=FUSION, **tables)
        dataset = open_data(recipe)
        run = create_run(tmp_path / str(number), recipe)
        system = new_system(recipe, dataset, run, CPU)
        return Trainer(recipe, dataset, system, run, Monitor(None, 0))

    return make


class Watched:
    """Remembers what pairs are drawn from."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[Tensor, Tensor]] = []
        self.pairs: list[MatchingPairs] = []
        monkeypatch.setattr(fusion, "draw_pairs", self)

    def __call__(
        self, scores: Tensor, image_of_text: Tensor, image_ids: Tensor, temperature: Tensor
    ) -> MatchingPairs:
        self.calls.append((image_of_text, image_ids))
        self.pairs.append(draw_pairs(scores, image_of_text, image_ids, temperature))
        return self.pairs[-1]


@pytest.mark.parametrize("captions", [1, 3])
def test_the_ids_of_a_batch_reach_the_draw(
    trainer: Make, monkeypatch: pytest.MonkeyPatch, captions: int
) -> None:
    watched = Watched(monkeypatch)
    made = trainer(training={"captions_per_image": captions})
    batch = next(iter(made.batches()))
    made.train_on(batch)
    ((image_of_text, image_ids),) = watched.calls
    assert torch.equal(image_ids, batch.image_ids)
    assert torch.equal(image_ids[image_of_text], batch.text_ids)
    (pairs,) = watched.pairs
    own = batch.image_ids[pairs.images] == batch.text_ids[pairs.texts]
    assert torch.equal(own, pairs.matched == 1)
    assert len(own) == 3 * len(batch.text_ids)


def test_in_chunks_pairs_are_drawn_within_each(
    trainer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The objective sees the whole batch all the same: its gradient is that of the whole batch."""
    whole, parts = trainer(), trainer(training={"chunk": 8})
    batch = next(iter(whole.batches()))
    whole._backward(batch)
    watched = Watched(monkeypatch)
    outcome = parts._backward(batch)
    assert [len(rows) for rows, _ in watched.calls] == [8, 8, 8, 8]
    assert outcome.extra is not None
    first, second = (made.system.model for made in (whole, parts))
    assert isinstance(first, Fusion)
    assert isinstance(second, Fusion)
    torch.testing.assert_close(
        first.image_projection.weight.grad, second.image_projection.weight.grad
    )
    assert second.matching_head[0].weight.grad is not None


def test_mined_negatives_are_among_those_that_are_drawn(
    run: Run, trainer: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "lists.safetensors"
    dataset = open_data(run.recipe())
    mine_run(load_system(run.folder, CPU), dataset, path, top_texts=30, top_images=10, source={})
    watched = Watched(monkeypatch)
    made = trainer(offline={"lists": str(path), "num_texts": 30, "num_images": 10})
    batch = next(iter(made.batches()))
    made.train_on(batch)
    (pairs,) = watched.pairs
    own = 32
    drawn = pairs.texts[len(batch.text_ids) : len(batch.text_ids) + own]
    assert len(batch.text_ids) == 3 * own
    assert (drawn >= own).any()
