"""Models that score pairs, in the whole tool: train, resume, evaluate, mine, compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from several import together
from small_runs import open_data, small_recipe, train_small
from training.test_distributed import StopsAfter
from training.test_resume import assert_same
from typer.testing import CliRunner

from gradspace.cli import app
from gradspace.loss.mined import FurtherScores
from gradspace.metrics import retrieval_report
from gradspace.mining import (
    MinedLists,
    load_lists,
    mine_exact,
    mine_proposed,
    mine_to_file,
    save_lists,
)
from gradspace.models import PairScorer
from gradspace.objectives.statistics import OfflineScores
from gradspace.runs.folder import Run, create_run
from gradspace.runs.recipe import make_recipe
from gradspace.runs.represent import represent_split
from gradspace.runs.system import load_system, new_system, prepare_system
from gradspace.scores import tiles
from gradspace.scores.evaluating import evaluating
from gradspace.scores.represented import Parts, mean_scores
from gradspace.scores.two_stage import TwoStageScores
from gradspace.training import train_run
from gradspace.training.loop import Trainer
from gradspace.training.monitor import Monitor
from gradspace.training.pair_batches import score_batch

CPU = torch.device("cpu")
ADAPTIVE = "adaptive-offline-quintuplet"
LISTS = {"num_texts": 30, "num_images": 10}
SIZES = ("--top-texts", "30", "--top-images", "10")


def run(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "300"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scorers")


@pytest.fixture(scope="module")
def scorer(folder: Path) -> Run:
    return train_small(folder / "bfan", model={"name": "bfan"}, objective={"name": "nt-xent"})


@pytest.fixture(scope="module")
def embedder(folder: Path) -> Run:
    return train_small(folder / "vse", objective={"name": "nt-xent"})


def parts_of(run: Run, split: str) -> Parts:
    found = represent_split(load_system(run.folder, CPU), open_data(run.recipe()).splits[split])
    assert isinstance(found, Parts)
    return found


# --- training ------------------------------------------------------------------------------------


def test_loss_falls_and_contributions_are_tracked(scorer: Run) -> None:
    lines = list(scorer.metrics())
    losses = [line["loss"] for line in lines if line["kind"] == "epoch"]
    assert losses[-1] < losses[0]
    steps = [line for line in lines if line["kind"] == "step"]
    assert steps[0]["image_to_text"]["per_query"] > 1
    assert steps[0]["text_to_image"]["per_query"] > 1


@pytest.mark.parametrize("name", ["scan", "bfan"])
@pytest.mark.slow
def test_stopped_it_ends_the_same(name: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "model": {"name": name, "dropout": 0.3},
        "training": {"chunk": 12, "ema": 0.9},
    }
    whole = train_small(tmp_path / "whole", **settings)
    recipe = small_recipe(**settings)
    stopped = create_run(tmp_path / "stopped", recipe)
    for monitor in (StopsAfter(7), Monitor(None, 0)):
        dataset = open_data(recipe)
        train_run(recipe, dataset, prepare_system(stopped, recipe, dataset, CPU), stopped, monitor)
    assert_same(stopped, whole)


def trainer_of(folder: Path, **settings: Any) -> Trainer:
    recipe = small_recipe(**settings)
    dataset, made = open_data(recipe), create_run(folder, recipe)
    return Trainer(recipe, dataset, new_system(recipe, dataset, made, CPU), made, Monitor(None, 0))


@pytest.mark.parametrize("name", ["triplet-hard", ADAPTIVE, "circle/sigmoid-ms"])
def test_in_chunks_the_gradient_is_the_same(name: str, lists: Path, tmp_path: Path) -> None:
    found = []
    for chunk in (None, 20):
        offline = {} if name == "triplet-hard" else {"offline": {"lists": str(lists), **LISTS}}
        trainer = trainer_of(
            tmp_path / str(chunk),
            model={"name": "scan"},
            objective={"name": name},
            training={"chunk": chunk},
            **offline,
        )
        outcome = trainer._backward(next(iter(trainer.batches())))
        model = trainer.system.model
        grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        assert len(grads) == len(list(model.parameters()))
        found.append((outcome.loss, grads))
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_learns_in_half_precision(precision: str, tmp_path: Path) -> None:
    settings = {"precision": precision, "epochs": 1}
    done = train_small(tmp_path / "run", model={"name": "scan"}, training=settings)
    assert [line for line in done.metrics() if line["kind"] == "epoch"]


# --- evaluation ----------------------------------------------------------------------------------


def test_tiles_have_the_scores_of_one_block(scorer: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = parts_of(scorer, "test")
    texts, lengths = found.scores()._texts(torch.arange(len(found.captions)))
    with torch.no_grad(), evaluating(found.scorer):
        whole = found.scorer.score(found.images, texts, lengths)
    monkeypatch.setattr(tiles, "BLOCK", (7, 13))
    calls: list[tuple[int, int]] = []
    scores = found.scores(lambda done, total: calls.append((done, total)))
    torch.testing.assert_close(scores.matrix().matrix, whole)
    assert calls[-1] == (whole.numel(), whole.numel())
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    part = scores.part(slice(3, 9), torch.tensor([5, 0, 17]))
    torch.testing.assert_close(part.matrix().matrix, whole[3:9][:, [5, 0, 17]])
    torch.testing.assert_close(part.transpose().matrix, whole[3:9][:, [5, 0, 17]].t())
    report = retrieval_report(scores, found.positives(), folds=2)
    assert report == retrieval_report(whole, found.positives(), folds=2)


def test_all_candidates_in_two_stages_are_all_candidates(scorer: Run, embedder: Run) -> None:
    found = parts_of(scorer, "test")
    split = open_data(embedder.recipe()).splits["test"]
    proposed = represent_split(load_system(embedder.folder, CPU), split).scores()
    full = retrieval_report(found.scores(), found.positives())
    assert isinstance(proposed, tiles.EmbeddingScores)
    everything = TwoStageScores(proposed, found.scores(), len(split.captions))
    assert retrieval_report(everything, found.positives()) == full
    one = retrieval_report(TwoStageScores(proposed, found.scores(), 1), found.positives())
    alone = retrieval_report(proposed, found.positives())
    assert one.rsum == pytest.approx(alone.rsum), "one candidate cannot be put into another order"
    folded = retrieval_report(everything, found.positives(), folds=2)
    assert folded == retrieval_report(found.scores(), found.positives(), folds=2)


def test_the_order_behind_the_proposals_is_that_of_the_proposer() -> None:
    class Scorer:
        training = False

        def train(self, mode: bool) -> None: ...

        def score(self, images: Any, texts: Any, lengths: Any) -> Any: ...

        def score_pairs(self, images: Any, texts: Any, lengths: Any) -> Any:
            return images[:, 0, 0] * texts[:, 0, 0]

    images, words = torch.tensor([[[1.0]], [[-1.0]]]), torch.tensor([[0.3], [0.1], [0.2], [0.0]])
    lengths = torch.ones(4, dtype=torch.long)
    pairs = tiles.PairScores(Scorer(), images, words, torch.arange(4), lengths, CPU)
    proposed = tiles.EmbeddingScores(torch.eye(2), torch.tensor([[1, 2], [2, 1], [3, 4], [0, 3.0]]))
    rows = TwoStageScores(proposed, pairs, 2).by_image.matrix
    assert rows.argsort(1, descending=True).tolist() == [[2, 1, 0, 3], [3, 2, 0, 1]]
    columns = TwoStageScores(proposed, pairs, 1).by_text.matrix
    assert columns.argmax(1).tolist() == [1, 0, 1, 1]


@pytest.mark.slow
def test_evaluate_on_the_command_line(scorer: Run, embedder: Run) -> None:
    both = ("--split", "test", "--json")
    full = json.loads(run("evaluate", scorer.folder, *both))
    assert full["rsum"] == pytest.approx(
        retrieval_report(
            parts_of(scorer, "test").scores(), parts_of(scorer, "test").positives()
        ).rsum
    )
    assert full["true_relevance"]["rsum"] > 0
    two = json.loads(
        run("evaluate", scorer.folder, "--propose", embedder.folder, "--top", "200", *both)
    )
    assert two["rsum"] == pytest.approx(full["rsum"])
    assert "the best 5 of" in run(
        "evaluate", scorer.folder, "--propose", embedder.folder, "--top", "5"
    )
    mean = json.loads(run("evaluate", scorer.folder, embedder.folder, *both))
    members = [
        represent_split(load_system(r.folder, CPU), open_data(r.recipe()).splits["test"])
        for r in (scorer, embedder)
    ]
    matrix = mean_scores(members)
    assert mean["rsum"] == retrieval_report(matrix, members[0].positives()).rsum


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("evaluate", "vse", "--propose", "vse"), "--propose is for one run that scores pairs"),
        (("evaluate", "bfan", "--propose", "bfan"), "--propose needs a run that embeds"),
        (("evaluate", "bfan", "bfan", "--propose", "vse"), "--propose is for one run"),
        (("evaluate", "bfan", "--propose", "vse", "--eccv"), "leave --propose out"),
        (("embed", "bfan", "--out", "x"), "bfan scores pairs and has no embeddings"),
        (("mine", "bfan", "--approximate", *SIZES), "--approximate is for runs that embed"),
        (("mine", "vse", "--propose", "vse", *SIZES), "--propose is for a run that scores pairs"),
    ],
)
def test_what_cannot_be_asked_for(
    arguments: tuple[str, ...], message: str, folder: Path, scorer: Run, embedder: Run
) -> None:
    places = [str(folder / word) if word in ("vse", "bfan") else word for word in arguments]
    with pytest.raises(ValueError, match=message):
        run(*places)


@pytest.mark.slow
def test_a_memory_and_several_processes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"objective\.memory keeps embeddings, and scan has none"):
        make_recipe({"model": {"name": "scan"}, "objective": {"memory": 8}})
    together(2, train_in_several, tmp_path)


def train_in_several(folder: Path) -> None:
    with pytest.raises(ValueError, match="several processes cannot share its batches"):
        train_small(folder / f"{torch.distributed.get_rank()}", model={"name": "scan"})


# --- mined negatives -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lists(scorer: Run, folder: Path) -> Path:
    run("mine", scorer.folder, *SIZES, "--out", folder / "lists")
    return folder / "lists"


def test_lists_are_the_highest_scores_of_others(scorer: Run, lists: Path) -> None:
    found, mined = parts_of(scorer, "train"), load_lists(lists)
    scores = found.scores().matrix().matrix
    own = found.image_ids[:, None] == found.text_ids
    kept = scores.masked_fill(own, -torch.inf)
    expected = kept.topk(30, dim=1).values
    listed = scores.gather(1, torch.tensor(np.asarray(mined.texts_of_image, dtype=np.int64)))
    torch.testing.assert_close(listed, expected)
    listed = scores.t().gather(1, torch.tensor(np.asarray(mined.images_of_text, dtype=np.int64)))
    torch.testing.assert_close(listed, kept.t().topk(10, dim=1).values)


def test_proposals_are_put_in_order_and_cut(scorer: Run, embedder: Run, lists: Path) -> None:
    split = open_data(embedder.recipe()).splits["train"]
    proposer = represent_split(load_system(embedder.folder, CPU), split)
    assert not isinstance(proposer, Parts)
    found, exact = parts_of(scorer, "train"), load_lists(lists)
    every = mine_proposed(proposer, found, top_texts=30, top_images=10, proposals=1000)
    assert (every.texts_of_image == exact.texts_of_image).mean() > 0.99, "but for rounding"
    np.testing.assert_allclose(every.text_scores, exact.text_scores, atol=2e-3)
    np.testing.assert_allclose(every.image_scores, exact.image_scores, atol=2e-3)
    np.testing.assert_allclose(every.positive_scores, exact.positive_scores, atol=2e-3)
    few = mine_proposed(proposer, found, top_texts=30, top_images=10, proposals=1)
    same = mine_exact(proposer, top_texts=30, top_images=10)
    assert np.array_equal(np.sort(few.texts_of_image), np.sort(same.texts_of_image))
    assert (np.diff(few.text_scores.astype(np.float32)) <= 0).all()
    owners = split.image_of_caption[few.texts_of_image]
    assert (owners != np.arange(len(owners))[:, None]).all(), "own captions are never listed"
    with pytest.raises(ValueError, match="use the same split for both"):
        mine_proposed(proposer, parts_of(scorer, "dev"), top_texts=3, top_images=3)


def test_interrupted_proposals_go_on_where_they_were(
    scorer: Run, embedder: Run, tmp_path: Path
) -> None:
    split = open_data(embedder.recipe()).splits["train"]
    proposer = represent_split(load_system(embedder.folder, CPU), split)
    assert not isinstance(proposer, Parts)
    found = parts_of(scorer, "train")
    lengths: dict[str, Any] = {"top_texts": 30, "top_images": 10, "save_every": 0}
    told: list[int] = []

    def stop_at_four(done: int, _: int) -> None:
        told.append(done)
        if done == 4:
            raise KeyboardInterrupt

    def mine(top_images: int = 10) -> MinedLists:
        options = {**lengths, "top_images": top_images}
        return mine_to_file(
            tmp_path / "lists",
            lambda state: mine_proposed(
                proposer, found, **options, state=state, progress=stop_at_four
            ),
        )

    with pytest.raises(KeyboardInterrupt):
        mine()
    mine()
    assert told[:5] == [1, 2, 3, 4, 5], "and not from the start"
    assert [path.name for path in tmp_path.iterdir()] == ["lists"]
    save_lists(tmp_path / "whole", mine_proposed(proposer, found, **lengths))
    assert (tmp_path / "lists").read_bytes() == (tmp_path / "whole").read_bytes()
    told.clear()
    with pytest.raises(KeyboardInterrupt):
        mine()
    with pytest.raises(KeyboardInterrupt):
        mine(top_images=9)
    assert told[4:] == [1, 2, 3, 4], "other lists are mined from the start"


def test_mine_with_proposals_on_the_command_line(
    scorer: Run, embedder: Run, tmp_path: Path
) -> None:
    out = tmp_path / "lists"
    told = run("mine", scorer.folder, "--propose", embedder.folder, *SIZES, "--out", out, "--json")
    assert json.loads(told)["method"] == {"search": "proposed and scored", "proposals": 2}
    load_lists(out).check_matches(open_data(scorer.recipe()).splits["train"])


def test_scores_of_what_was_mined(lists: Path, tmp_path: Path) -> None:
    """Each term and each column is the score of the very pair that it is named for."""
    offline = {"lists": str(lists), **LISTS}
    trainer = trainer_of(
        tmp_path / "run", model={"name": "bfan"}, objective={"name": ADAPTIVE}, offline=offline
    )
    batch = next(iter(trainer.batches()))
    model = trainer.system.model.eval()
    assert isinstance(model, PairScorer)
    with torch.no_grad():
        images, texts = model(batch.images, batch.tokens, batch.lengths)
        everything = model.score(images, texts, batch.lengths)
        objective = trainer.parts.loss.objective
        ids = batch.image_ids, batch.text_ids
        terms = score_batch(model, objective, batch, images, texts, ids, extended=True)
        plain = trainer_of(tmp_path / "plain", offline=offline).parts.loss.objective
        columns = score_batch(model, plain, batch, images, texts, ids, extended=True)
    n = len(images) // 3
    own, of_image, of_text = (torch.arange(n) + k * n for k in range(3))
    torch.testing.assert_close(terms.scores, everything[:n, :n])
    assert terms.mined
    assert columns.mined
    by_image, by_text = terms.mined
    assert isinstance(by_image, OfflineScores)
    assert isinstance(by_text, OfflineScores)
    for found, (row, column) in {
        by_image.positive: (own, own),
        by_image.negative: (own, of_text),
        by_image.pair: (of_image, of_text),
        by_text.negative: (of_image, own),
        by_text.pair: (of_text, of_image),
    }.items():
        torch.testing.assert_close(found, everything[row, column])
    more = torch.cat([of_text, of_image])
    expected = everything[:n][:, more], everything[more][:, :n].t()
    for further, scores in zip(columns.mined, expected, strict=True):
        assert isinstance(further, FurtherScores)
        torch.testing.assert_close(further.scores, scores)
        assert torch.equal(further.ids, batch.text_ids[more])
