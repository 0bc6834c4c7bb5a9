"""Large towers: shared by processes, computed again, compiled; the numbers are the plain ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from models import tiny, tiny_dual
from safetensors.torch import load_file
from several import together
from small_runs import small_recipe
from torch import Tensor
from training.test_distributed import train_together
from training.test_resume import steps_saved

from gradspace import processes
from gradspace.data.batches import Batch
from gradspace.models import ImageInput, RetrievalModel, TextInput, build_model
from gradspace.models.pretrained import Pretrained
from gradspace.runs.folder import Run
from gradspace.runs.recipe_tables import TrainingRecipe
from gradspace.training import sharing
from gradspace.training.towers import prepare_towers

CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def prepared(model: RetrievalModel, **keys: bool) -> RetrievalModel:
    prepare_towers(model, TrainingRecipe.model_validate(keys), CPU)
    return model


def step(model: RetrievalModel) -> tuple[dict[str, Tensor], int]:
    """The gradients of a batch, and how many numbers were kept for the backward pass."""
    kept = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.numel()
        return tensor

    tokens = torch.randint(4, 300, (4, 8), generator=torch.Generator().manual_seed(0))
    images = tiny.pictures(4).float() / 255
    model.train()
    torch.manual_seed(1)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        found = model(images, tokens, torch.tensor([8, 8, 8, 8]))
        (found[0] @ found[1].t()).diagonal().sum().backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return gradients, kept


# --- computed again -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["clip", "siglip", "altclip"])
def test_computed_again_gradients_are_equal_and_less_is_kept(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    folder = tiny_dual.FAMILIES[kind](tmp_path)
    expected, all_kept = step(tiny_dual.build(folder))
    found, kept = step(prepared(tiny_dual.build(folder), recompute_towers=True))
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.equal(found[name], gradient), name
    assert kept < all_kept / 2


def test_towers_that_cannot_be_computed_again(tmp_path: Path) -> None:
    inputs = ImageInput(backbone=tiny.resnet(tmp_path)), TextInput(vocabulary_size=9)
    model = build_model("vse++", image_input=inputs[0], text_input=inputs[1], width=8)
    with pytest.raises(ValueError, match="cannot recompute the layers of ResNetModel"):
        prepared(model, recompute_towers=True)
    align = tiny_dual.build(tiny_dual.align(tmp_path / "align"))
    with pytest.raises(ValueError, match="cannot recompute the layers of AlignVisionModel"):
        prepared(align, recompute_towers=True)


# --- compiled -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # of what dynamo looks at
def test_compiled_towers_have_the_same_gradients(tmp_path: Path) -> None:
    torch.manual_seed(0)
    folder = tiny.vit(tmp_path)
    inputs = ImageInput(backbone=folder), TextInput(vocabulary_size=9)
    models: list[Any] = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = build_model("vse++", image_input=inputs[0], text_input=inputs[1], width=8)
        model.fine_tune_backbone(True)
        models.append(prepared(model, compile_towers=compiled))
    for number in (3, 5):
        values = [model.embed_images(tiny.pictures(number))[:, 0].sum() for model in models]
        torch.testing.assert_close(*values)
        torch.autograd.backward(values)
    assert len([m for m in models[1].modules() if m._compiled_call_impl is not None]) == 2
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    model = tiny_dual.build(tiny_dual.clip(tmp_path))
    with pytest.raises(ValueError, match=r"needs a C\+\+ compiler such as g\+\+"):
        prepared(model, compile_towers=True)


# --- shared by processes ------------------------------------------------------------------------

DATA = {"source": "scenes", "num_train": 40, "num_dev": 10, "num_test": 10}
TRAINING: dict[str, Any] = {
    "batch_size": 33,
    "chunk": 8,  # 17 images are three parts, 16 are two
    "epochs": 1,
    "learning_rate": 1e-3,
    "track_every": 1,
    "shard_towers": True,
    "recompute_towers": True,
}


def tables_of_dual(folder: Path) -> dict[str, Any]:
    model = {"name": "dual", "pretrained": str(folder)}
    return {"data": DATA, "model": model, "objective": {"name": "nt-xent"}, "training": TRAINING}


def tables_of_backbone(folder: Path) -> dict[str, Any]:
    """First with the backbone frozen: it is shared when the second stage begins."""
    model = {"name": "vse++", "width": 16, "word_width": 8, "backbone": str(folder)}
    training = {**TRAINING, "precision": "bfloat16"}
    finetune = {"epochs": 1, "learning_rate": 1e-3}
    tables = {"data": DATA, "model": model, "objective": {"name": "nt-xent"}}
    return {**tables, "training": training, "finetune": finetune}


def train(out: Path, tables: dict[str, Any], stop_after: int | None = None) -> None:
    """Without what other tests train by default."""
    import small_runs

    small_runs.MODEL, small_runs.TRAINING = {}, {}
    train_together(out, tables, stop_after)


def assert_alike(run: Run, whole: Run, tolerance: float) -> None:
    lines = list(zip(run.metrics(), whole.metrics(), strict=True))
    assert len(lines) > 5
    for line, other in lines:
        assert line["loss"] == pytest.approx(other["loss"], rel=tolerance)
        if line["kind"] == "step":
            assert line["gradient"] == pytest.approx(other["gradient"], rel=10 * tolerance)
    found, expected = load_file(run.last), load_file(whole.last)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        if name != "random.cpu":  # which has a row for every process
            assert found[name].shape == tensor.shape, name
        if name.endswith("exp_avg"):
            torch.testing.assert_close(found[name], tensor, rtol=0, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tables_of", "network", "tolerance", "numbers"),
    [
        (tables_of_dual, tiny_dual.clip, 1e-4, (2, 1)),
        (tables_of_backbone, tiny.vit, 0.02, (1, 2)),
    ],
    ids=["dual, then alone", "backbone, alone and then shared"],
)
def test_shared_towers_train_as_whole_ones_and_are_resumed_either_way(
    tables_of: Any, network: Any, tolerance: float, numbers: tuple[int, int], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    tables = tables_of(network(tmp_path / "network"))
    whole, run = Run(tmp_path / "whole"), Run(tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("small_runs.MODEL", {})
        patch.setattr("small_runs.TRAINING", {})
        train_together(whole.folder, tables)
        for number, stop_after in zip(numbers, (3, None), strict=True):
            if number == 1:
                train_together(run.folder, tables, stop_after)
            else:
                together(number, train, run.folder, tables, stop_after)
            assert steps_saved(run) == (stop_after or steps_saved(whole))
    assert_alike(run, whole, tolerance)


def count_parts(folder: Path) -> None:
    """One process has eight images of a caption each, the other three, one of four captions."""
    counts = [[1] * 8, [1, 4, 1]][processes.rank()]
    ids = torch.arange(len(counts))
    batch = Batch(
        images=torch.rand(len(counts), 4),
        tokens=torch.zeros(sum(counts), 2, dtype=torch.long),
        lengths=torch.full((sum(counts),), 2),
        image_ids=ids,
        text_ids=ids.repeat_interleave(torch.tensor(counts)),
        captions=torch.arange(sum(counts)),
    )
    parts = sharing.in_step(batch.in_parts([4, 100][processes.rank()]))
    assert torch.equal(torch.cat([part.captions for part in parts]), batch.captions)
    (folder / f"{processes.rank()}").write_text(str(len(parts)))


@pytest.mark.slow
def test_every_process_has_as_many_parts(tmp_path: Path) -> None:
    together(2, count_parts, tmp_path)
    assert [(tmp_path / f"{rank}").read_text() for rank in range(2)] == ["2", "2"]


def write_sizes(folder: Path, network: Path) -> None:
    """Share of the weights that a process holds, before and after."""
    model = tiny_dual.build(network)
    before = sum(p.numel() for p in model.parameters())
    sharing.share_towers(model)
    after = sum(sharing.own_part(p).numel() for p in model.parameters())
    restored = sharing.whole(model.state_dict())
    if processes.is_first():
        expected = tiny_dual.build(network).state_dict()
        assert all(torch.equal(restored[name], expected[name]) for name in expected)
    (folder / f"{os.environ['RANK']}").write_text(f"{before} {after}")


@pytest.mark.slow
def test_a_process_has_its_share(tmp_path: Path) -> None:
    network = tiny_dual.siglip(tmp_path / "network")
    together(2, write_sizes, tmp_path, network)
    sizes = [(tmp_path / f"{rank}").read_text().split() for rank in range(2)]
    for before, after in sizes:
        assert int(after) < 0.55 * int(before)


@pytest.mark.parametrize("kind", sorted(tiny_dual.FAMILIES))
def test_a_group_of_the_optimiser_is_shared_as_a_whole(kind: str, tmp_path: Path) -> None:
    """A fused optimiser cannot step shared and other weights together."""
    model = tiny_dual.build(tiny_dual.FAMILIES[kind](tmp_path))
    parts = [part for part in model.modules() if isinstance(part, Pretrained)]
    shared = {p for part in parts for tower in part.towers() for p in tower.parameters()}
    for group in model.parameter_groups(1.0):
        assert len({parameter in shared for parameter in group["params"]}) == 1, group["name"]


# --- what a recipe cannot ask for ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"shard_towers": True, "ema": 0.9}, "training.ema keeps a whole second model"),
        ({"shard_towers": True, "precision": "float16"}, "is for precision bfloat16 or float32"),
    ],
)
def test_what_does_not_go_together(training: dict[str, Any], message: str) -> None:
    model = {"name": "dual", "pretrained": "some/clip", "width": None, "word_width": None}
    with pytest.raises(ValueError, match=message):
        small_recipe(model={k: v for k, v in model.items() if v}, training=training)


@pytest.mark.parametrize("key", ["shard_towers", "recompute_towers", "compile_towers"])
def test_models_without_towers(key: str) -> None:
    with pytest.raises(ValueError, match=f"training.{key} is for towers of transformers"):
        small_recipe(training={key: True})
