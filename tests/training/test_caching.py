"""Gradient caching: a batch in parts has the gradient of the batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import open_data, small_recipe, train_small
from torch import Tensor, nn

from gradspace.analysis.cocos import cocos
from gradspace.data.batches import Batch
from gradspace.objectives import objective
from gradspace.runs.checkpoint import random_states
from gradspace.runs.folder import create_run
from gradspace.runs.system import new_system
from gradspace.tensor_files import load_tensors
from gradspace.training.loop import Trainer
from gradspace.training.monitor import Monitor
from gradspace.training.tracking import MOST_IMAGES, contributions

VSRN = {
    "name": "vsrn",
    "width": 32,
    "word_width": 16,
    "num_blocks": 1,
    "caption_decoder": True,
    "caption_dropout": 0.0,
}
BIG = {"batch_size": 32, "epochs": 1}
Make = Callable[..., Trainer]
NEEDS_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def trainer(tmp_path: Path) -> Make:
    """Trainers with equal weights, whatever their recipes say about chunks."""
    number = 0

    def make(device: str = "cpu", **tables: Any) -> Trainer:
        nonlocal number
        number += 1
        recipe = small_recipe(**tables)
        dataset = open_data(recipe)
        run = create_run(tmp_path / str(number), recipe)
        system = new_system(recipe, dataset, run, torch.device(device))
        with torch.no_grad():  # biases and scales start at 0 and would hide mistakes
            for parameter in system.model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        return Trainer(recipe, dataset, system, run, Monitor(None, 0))

    return make


def first_batch(trainer: Trainer) -> Batch:
    return next(iter(trainer.batches()))


def gradients(trainer: Trainer) -> dict[str, Tensor]:
    named = trainer.system.model.named_parameters()
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


def freeze_batch_norm(trainer: Trainer) -> None:
    for part in trainer.system.model.modules():
        if isinstance(part, nn.BatchNorm1d):
            part.eval()


@pytest.mark.parametrize("chunk", [1, 5, 11])
@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"objective": {"name": "nt-xent"}},
        {"model": VSRN},
        {"training": {"captions_per_image": "all"}},
        {"model": VSRN, "training": {"captions_per_image": 3, "accumulate": 2}},
        {"training": {"precision": "bfloat16"}},
    ],
    ids=["triplet", "nt-xent", "vsrn", "all captions", "vsrn with 3 captions", "bfloat16"],
)
@pytest.mark.slow
def test_parts_have_the_gradient_of_the_batch(
    tables: dict[str, Any], chunk: int, trainer: Make
) -> None:
    """Without dropout, and BatchNorm frozen, nothing sees the parts."""
    training = {**BIG, "batch_size": 12, **tables.get("training", {})}
    whole = trainer(**{**tables, "training": training})
    parts = trainer(**{**tables, "training": {**training, "chunk": chunk}})
    batch = first_batch(whole)
    for one in (whole, parts):
        freeze_batch_norm(one)
    expected, found = whole._backward(batch), parts._backward(batch)
    assert len(batch.in_parts(chunk)) > 1
    torch.testing.assert_close(asdict(found), asdict(expected))
    assert (found.extra is not None) == ("model" in tables)
    tolerance = 0.05 if "precision" in training else 1e-4
    torch.testing.assert_close(gradients(parts), gradients(whole), rtol=tolerance, atol=tolerance)
    assert any(gradient.abs().max() > 1e-3 for gradient in gradients(whole).values())


@pytest.mark.parametrize("name", ["vse++", "vsrn", "vse-infinity"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def test_both_passes_draw_the_same_dropout(name: str, device: str, trainer: Make) -> None:
    """Compare with the parts computed with all graphs in memory; BatchNorm as in training."""
    model = {**(VSRN if name == "vsrn" else {"name": name}), "dropout": 0.5}
    trainers = [trainer(device, model=model, training={**BIG, "chunk": 8}) for _ in range(2)]
    batch = first_batch(trainers[0])
    torch.manual_seed(3)
    found = trainers[0]._backward(batch)
    after = random_states(torch.device(device))

    torch.manual_seed(3)
    by_hand = trainers[1].system.model
    batch = batch.to(device)
    images, texts, extras = [], [], []
    for start in range(0, 32, 8):
        rows = slice(start, start + 8)
        some = by_hand(batch.images[rows], batch.tokens[rows], batch.lengths[rows])
        images.append(some[0])
        texts.append(some[1])
        extras.append(by_hand.extra_loss())
    value = trainers[1].parts.loss(
        torch.cat(images), torch.cat(texts), batch.image_ids, batch.text_ids
    )
    extra = sum(e / 4 for e in extras if e is not None)
    torch.autograd.backward(value + extra)

    torch.testing.assert_close(found.images, torch.cat(images))
    torch.testing.assert_close(found.texts, torch.cat(texts))
    torch.testing.assert_close(found.loss, value)
    torch.testing.assert_close(gradients(trainers[0]), gradients(trainers[1]), rtol=1e-4, atol=1e-4)
    for name, state in random_states(torch.device(device)).items():
        assert torch.equal(after[name], state), "the second pass leaves no trace"
    buffers = dict(trainers[0].system.model.named_buffers())
    torch.testing.assert_close(buffers, dict(by_hand.named_buffers()))


def test_gradients_are_scaled_once(trainer: Make) -> None:
    """As float16 needs it, with the model's own loss and two batches to a step."""
    tables = {"model": VSRN, "training": {**BIG, "chunk": 8, "accumulate": 2}}
    plain, scaled = trainer(**tables), trainer(**tables)
    scaled.parts.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    batch = first_batch(plain)
    plain._backward(batch)
    scaled._backward(batch)
    expected = {name: 1024 * gradient for name, gradient in gradients(plain).items()}
    torch.testing.assert_close(gradients(scaled), expected, rtol=1e-4, atol=1e-2)


def test_no_more_than_a_chunk_is_embedded_at_once(trainer: Make) -> None:
    small = trainer(training={**BIG, "chunk": 7, "captions_per_image": "all"})
    seen: list[tuple[int, int, bool]] = []

    def look(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append((len(inputs[0]), len(inputs[1]), torch.is_grad_enabled()))

    small.system.model.register_forward_pre_hook(look)
    small._backward(first_batch(small))
    assert seen == 32 * [(1, 5, False)] + 32 * [(1, 5, True)]


def test_a_run_in_chunks_ends_where_the_plain_one_does(tmp_path: Path) -> None:
    plain = train_small(tmp_path / "plain", training={"ema": 0.9})
    chunks = train_small(tmp_path / "chunks", training={"ema": 0.9, "chunk": 10})
    expected, _ = load_tensors(plain.best)
    found, _ = load_tensors(chunks.best)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    for line, other in zip(chunks.metrics(), plain.metrics(), strict=True):
        assert line["loss"] == pytest.approx(other["loss"], rel=1e-3)


def test_of_a_large_batch_the_first_images_are_counted() -> None:
    torch.manual_seed(0)
    images = nn.functional.normalize(torch.randn(MOST_IMAGES + 100, 8), dim=1)
    ids = torch.arange(len(images))
    text_ids = ids.repeat_interleave(2)[torch.randperm(2 * len(images))]
    texts = nn.functional.normalize(images[text_ids] + torch.randn(len(text_ids), 8), dim=1)
    chosen = objective("nt-xent")
    found = contributions(chosen, images, texts, ids, text_ids)
    theirs = text_ids < MOST_IMAGES
    scores = images[:MOST_IMAGES] @ texts[theirs].t()
    positives = ids[:MOST_IMAGES, None] == text_ids[theirs]
    assert found["image_to_text"] == asdict(cocos(chosen, scores, positives))
    assert found["text_to_image"] == asdict(cocos(chosen, scores.t(), positives.t()))
