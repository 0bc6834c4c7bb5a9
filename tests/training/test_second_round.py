"""Training on mined negatives: batches, the same numbers after a stop, lists that do not fit."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from several import together
from small_runs import open_data, small_recipe, train_small
from training.test_distributed import StopsAfter, write_gradients
from training.test_resume import assert_same

from gradspace import processes
from gradspace.data.order import epoch_order
from gradspace.mining import load_lists
from gradspace.runs.folder import Run, create_run
from gradspace.runs.mine import mine_run
from gradspace.runs.recipe import make_recipe
from gradspace.runs.system import load_system, new_system, prepare_system
from gradspace.training import train_run
from gradspace.training.loop import Trainer
from gradspace.training.monitor import Monitor
from gradspace.training.second_round import open_mined, split_extended

CPU = torch.device("cpu")
ADAPTIVE = "adaptive-offline-quintuplet"
SHORT = {"num_texts": 30, "num_images": 10}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A first round, with its lists."""
    run = train_small(tmp_path_factory.mktemp("rounds") / "first", objective={"name": "triplet"})
    mine_run(
        load_system(run.folder, CPU),
        open_data(run.recipe()),
        lists_of(run),
        top_texts=30,
        top_images=10,
        source={},
    )
    return run


def lists_of(run: Run) -> Path:
    return run.folder / "lists.safetensors"


def tables(first: Run, **offline: Any) -> dict[str, Any]:
    settings = {"lists": str(lists_of(first)), **SHORT, **offline}
    return {"objective": {"name": ADAPTIVE}, "offline": settings}


def test_a_batch_has_its_pairs_and_what_was_mined_for_them(first: Run, tmp_path: Path) -> None:
    recipe = small_recipe(**tables(first))
    dataset = open_data(recipe)
    train_split = dataset.splits["train"]
    run = create_run(tmp_path / "run", recipe)
    assert recipe.offline is not None
    mined = open_mined(run, recipe.offline, train_split)
    assert run.offline.read_bytes() == lists_of(first).read_bytes()
    [plan, *_] = epoch_order(train_split, batch_size=32, captions_per_image=1, seed=0, epoch=1)
    longer = mined.extend(plan, seed=0, epoch=1)
    own, mined_images, images_of_texts = np.split(longer.images, 3)
    own_captions, texts_of_images, mined_texts = np.split(longer.captions, 3)
    assert np.array_equal(own, plan.images)
    assert np.array_equal(own_captions, plan.captions)
    assert np.array_equal(train_split.image_of_caption[longer.captions], longer.images)
    assert len(set(longer.items.tolist())) == 96, "every row has a random crop of its own"
    for image, caption, text, other in zip(
        own, own_captions, mined_texts, mined_images, strict=True
    ):
        assert text in mined.lists.texts_of_image[image]
        assert other in mined.lists.images_of_text[caption]
        assert train_split.image_of_caption[text] != image
        assert other != image
    assert np.array_equal(train_split.image_of_caption[mined_texts], images_of_texts)
    assert np.array_equal(train_split.image_of_caption[texts_of_images], mined_images)
    ids = torch.from_numpy(longer.images)
    vectors = torch.arange(96.0)[:, None]
    (images, texts, *_), offline = split_extended(vectors, vectors + 100, ids, ids)
    assert images.flatten().tolist() == list(range(32))
    assert texts.flatten().tolist() == list(range(100, 132))
    assert offline.images[0] == 32
    assert offline.texts_of_images[0] == 132
    assert offline.images_of_texts[0] == 64
    assert offline.texts[0] == 164


@pytest.mark.parametrize("name", [ADAPTIVE, "circle/sigmoid-ms", "nt-xent"])
def test_in_chunks_the_gradient_is_the_same(name: str, first: Run, tmp_path: Path) -> None:
    found = []
    for number, chunk in enumerate((None, 20)):
        settings = {**tables(first), "objective": {"name": name}, "training": {"chunk": chunk}}
        recipe = small_recipe(**settings)
        dataset = open_data(recipe)
        run = create_run(tmp_path / str(number), recipe)
        system = new_system(recipe, dataset, run, CPU)
        trainer = Trainer(recipe, dataset, system, run, Monitor(None, 0))
        outcome = trainer._backward(next(iter(trainer.batches())))
        grads = {n: p.grad for n, p in system.model.named_parameters() if p.grad is not None}
        found.append((outcome.loss, grads))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", [ADAPTIVE, "circle/sigmoid-ms"])
@pytest.mark.slow
def test_two_processes_have_the_gradient_of_one(name: str, first: Run, tmp_path: Path) -> None:
    settings = {**tables(first), "objective": {"name": name}, "training": {"batch_size": 15}}
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    write_gradients(one, settings)
    together(2, write_gradients, two, settings)
    expected = load_file(one / "0.safetensors")
    for rank in range(2):
        found = load_file(two / f"{rank}.safetensors")
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-5, msg=key)


def test_a_process_that_comes_late_finds_the_lists(first: Run, tmp_path: Path) -> None:
    together(2, open_one_after_the_other, tmp_path, tables(first))


def open_one_after_the_other(folder: Path, settings: dict[str, Any]) -> None:
    run, recipe = Run(folder), small_recipe(**settings)
    split = open_data(recipe).splits["train"]
    assert recipe.offline is not None
    end = time.monotonic() + 30
    while not processes.is_first() and not run.offline.exists() and time.monotonic() < end:
        time.sleep(0.01)
    open_mined(run, recipe.offline, split)
    assert processes.total(1) == 2, "both are at the same step"


@pytest.mark.parametrize("stop", [7, 13])
def test_stopped_and_mined_anew_it_ends_the_same(stop: int, first: Run, tmp_path: Path) -> None:
    """Ten batches an epoch; lists are mined anew before epochs 1 and 2."""
    settings = {**tables(first, every=1), "training": {"epochs": 3}, "model": {"dropout": 0.3}}
    whole = train_small(tmp_path / "whole", **settings)
    recipe = small_recipe(**settings)
    run = create_run(tmp_path / "stopped", recipe)
    for monitor in (StopsAfter(stop), Monitor(None, 0)):
        dataset = open_data(recipe)
        system = prepare_system(run, recipe, dataset, CPU)
        train_run(recipe, dataset, system, run, monitor)
    assert_same(run, whole)
    assert run.offline.read_bytes() == whole.offline.read_bytes()
    assert load_lists(run.offline).record["source"]["epoch"] == "2"
    assert lists_of(first).read_bytes() != run.offline.read_bytes(), "the given file is kept"
    steps = [line for line in run.metrics() if line["kind"] == "step"]
    counted = [line["offline"]["image_to_text"] for line in steps]
    assert all(0 <= count["per_query"] <= 1 and 0 <= count["pairs"] <= 1 for count in counted)
    assert any(count["weight"] > 0 for count in counted)


def test_a_second_round_may_start_from_the_first(first: Run, tmp_path: Path) -> None:
    recipe = small_recipe(**tables(first), init=str(first.folder))
    dataset = open_data(recipe)
    system = new_system(recipe, dataset, create_run(tmp_path / "run", recipe), CPU)
    expected = load_system(first.folder, CPU).model.state_dict()
    assert all(torch.equal(v, expected[k]) for k, v in system.model.state_dict().items())
    wider = small_recipe(init=str(first.folder), model={"width": 48})
    with pytest.raises(ValueError, match="do not fit; it must be the same model"):
        new_system(wider, dataset, create_run(tmp_path / "wider", wider), CPU)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": {"num_train": 70}}, r"were mined on train of scenes \(64 images.*and this is tr"),
        ({"offline": {"lists": "gone"}}, "gone does not exist: expected a file of mined lists"),
        ({"offline": {**SHORT, "num_texts": 31}}, "num_texts is 31.*lists.*30"),
    ],
)
def test_lists_that_do_not_fit(
    change: dict[str, Any], message: str, first: Run, tmp_path: Path
) -> None:
    settings = tables(first)
    for name, values in change.items():
        settings[name] = {**settings.get(name, {}), **values}
    with pytest.raises(ValueError, match=message):
        train_small(tmp_path / "run", **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objective": {"name": ADAPTIVE}}, "needs mined negatives: give offline.lists"),
        ({"offline": {}, "training": {"captions_per_image": 2}}, "set captions_per_image to 1"),
        ({"offline": {"skip": 60}}, "skip must be smaller"),
        ({"offline": {"draws": "normal"}}, "unknown key offline.draws; did you mean 'draw'"),
    ],
)
def test_recipes_that_cannot_work(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_recipe(settings)


def test_without_lists_there_is_nothing_to_draw_from(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there are no mined negatives yet"):
        train_small(tmp_path / "run", offline={"every": 2, **SHORT})
