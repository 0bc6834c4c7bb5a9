"""The loss for open_clip-style loops: its numbers, and open_clip's own training loop."""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from samples import NAMES, OFFLINE_NAMES
from several import together
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel

import gradspace as gs
from gradspace import processes
from gradspace.integrations.open_clip import ClipLoss


class Clip(nn.Module):
    """Two tables of features, and what open_clip's models return of them."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.images, self.texts = (
            nn.Parameter(torch.randn(8, 5, generator=generator, dtype=torch.float64))
            for _ in range(2)
        )
        self.logit_scale = nn.Parameter(torch.tensor(2.3, dtype=torch.float64))
        self.logit_bias = nn.Parameter(torch.tensor(-10.0, dtype=torch.float64)) if bias else None

    def forward(self, rows: Tensor) -> dict[str, Tensor]:
        out = {
            "image_features": normalize(self.images[rows], dim=-1),
            "text_features": normalize(self.texts[rows], dim=-1),
            "logit_scale": self.logit_scale.exp(),
        }
        return out if self.logit_bias is None else {**out, "logit_bias": self.logit_bias}


def outcome(loss: Any, model: Clip | None = None, **more: Any) -> tuple[Tensor, ...]:
    """Value, and gradients of images, texts and logit_scale."""
    model = model or Clip()
    value = loss(**model(torch.arange(8)), output_dict=True, **more)["contrastive_loss"]
    value.backward()
    parameters = (model.images, model.texts, model.logit_scale)
    gradients = [p.grad for p in parameters if p.grad is not None]
    assert len(gradients) == 3
    return value.detach(), *gradients


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OFFLINE_NAMES])
def test_every_objective_has_the_value_and_gradient_of_the_retrieval_loss(name: str) -> None:
    model = Clip(bias=True)
    ids = torch.tensor([0, 1, 2, 0, 3, 4, 5, 5])
    value, images, texts, scale = outcome(ClipLoss(name), model, image_ids=ids, text_ids=ids)
    assert not scale.any()
    assert model.logit_bias is not None
    assert model.logit_bias.grad is not None
    assert not model.logit_bias.grad.any()
    other = Clip()
    out = other(torch.arange(8))
    expected = gs.RetrievalLoss(name)(out["image_features"], out["text_features"], ids, ids)
    expected.backward()
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close((images, texts), (other.images.grad, other.texts.grad))


def clip_equation(
    image_features: Tensor, text_features: Tensor, logit_scale: Tensor, output_dict: bool
) -> dict[str, Tensor]:
    logits = logit_scale * image_features @ text_features.t()
    labels = torch.arange(len(logits))
    value = (cross_entropy(logits, labels) + cross_entropy(logits.t(), labels)) / 2
    return {"contrastive_loss": value}


def peers_loss() -> Any:
    """open_clip's class from its file: the package needs a torchvision that loads."""
    package = importlib.util.find_spec("open_clip")
    if package is None or not package.submodule_search_locations:
        pytest.skip("open_clip is not installed")
    path = Path(package.submodule_search_locations[0]) / "loss.py"
    spec = importlib.util.spec_from_file_location("open_clip_loss", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ClipLoss()


@pytest.mark.parametrize("source", ["equation", "peer"])
def test_nt_xent_is_the_loss_of_clip(source: str) -> None:
    theirs = outcome(clip_equation if source == "equation" else peers_loss())
    learnt = ClipLoss(gs.objective("nt-xent", temperature=1.0), learn_scale=True)
    torch.testing.assert_close(outcome(learnt), theirs)
    temperature = math.exp(-2.3)
    held = outcome(ClipLoss(gs.objective("nt-xent", temperature=temperature)))
    torch.testing.assert_close(held[:3], theirs[:3])
    assert not held[3].any()


def test_half_precision_is_computed_in_float32() -> None:
    features = normalize(torch.randn(6, 16), dim=1)
    scale = torch.tensor(10.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = ClipLoss("nt-xent")(features.bfloat16(), features.bfloat16(), scale)
    assert isinstance(value, Tensor)
    assert value.dtype == torch.float32


@pytest.mark.parametrize("learn_scale", [False, True])
def test_a_missing_scale_is_named(learn_scale: bool) -> None:
    loss = ClipLoss("nt-xent", learn_scale=learn_scale)
    with pytest.raises(ValueError, match="logit_scale must be a tensor, got None; pass the one"):
        loss(torch.eye(3), torch.eye(3), logit_scale=None)


def _write_gradients(folder: Path) -> None:
    model = Clip(bias=True)
    wrapped = DistributedDataParallel(model)
    own = torch.arange(5) if processes.rank() == 0 else torch.arange(5, 8)
    loss = ClipLoss(gs.objective("nt-xent", temperature=1.0), learn_scale=True)
    for _ in range(2):  # the second step fails where a parameter of the first got no gradient
        model.zero_grad()
        value = loss(**wrapped(own))
        assert isinstance(value, Tensor)
        torch.autograd.backward(value)
    if processes.is_first():
        assert model.logit_bias is not None
        found = (model.images.grad, model.texts.grad, model.logit_scale.grad, model.logit_bias.grad)
        torch.save((value.detach(), *found), folder / "found.pt")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.slow
def test_processes_have_the_gradient_of_one_with_the_whole_batch(tmp_path: Path) -> None:
    together(2, _write_gradients, tmp_path)
    *found, bias = torch.load(tmp_path / "found.pt")
    torch.testing.assert_close(tuple(found), outcome(clip_equation))
    assert not bias.any()


@pytest.mark.filterwarnings("ignore")
def test_the_real_loop_trains() -> None:
    """open_clip's train_one_epoch on a tiny CLIP, with and without accumulation."""
    try:
        import open_clip
        from open_clip_train import train
    except (ImportError, RuntimeError) as error:  # a torchvision that does not load
        pytest.skip(f"open_clip cannot be imported: {error}")
    torch.manual_seed(0)
    vision = {"image_size": 16, "layers": 1, "width": 16, "patch_size": 8, "head_width": 8}
    text = {"context_length": 8, "vocab_size": 50, "width": 16, "heads": 2, "layers": 1}
    model = open_clip.model.CLIP(
        8, open_clip.CLIPVisionCfg(**vision), open_clip.CLIPTextCfg(**text), output_dict=True
    )
    batches = [(torch.randn(8, 3, 16, 16), torch.randint(1, 50, (8, 8)))] * 8
    loader = _Loader(batches)
    scale = model.logit_scale.detach().clone()
    loss = ClipLoss("nca/sigmoid-ms")
    before = _value(loss, model, batches[0])
    for accum_freq in (1, 2):
        train.train_one_epoch(
            model,
            {"train": SimpleNamespace(dataloader=loader, set_epoch=lambda epoch: None)},
            loss,
            0,
            torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0),
            None,
            lambda step: None,
            None,
            _arguments(accum_freq),
        )
    assert _value(loss, model, batches[0]) < before
    assert torch.equal(model.logit_scale, scale)


class _Loader(list[Any]):
    num_batches = 8
    num_samples = 64


def _value(loss: ClipLoss, model: nn.Module, batch: tuple[Tensor, Tensor]) -> float:
    with torch.no_grad():
        return float(loss(**model(*batch)))


def _arguments(accum_freq: int) -> argparse.Namespace:
    return argparse.Namespace(
        device="cpu",
        precision="fp32",
        distill=False,
        accum_freq=accum_freq,
        skip_scheduler=True,
        horovod=False,
        grad_clip_norm=None,
        batch_size=8,
        world_size=1,
        rank=0,
        local_rank=0,
        log_every_n_steps=1,
        save_logs=False,
        wandb=False,
        trace=False,
        distributed=False,
        tensorboard=False,
    )


@pytest.mark.slow
def test_importing_the_drop_ins_imports_no_peer(tmp_path: Path) -> None:
    import subprocess

    program = (
        "import sys, gradspace, gradspace.integrations.open_clip\n"
        "import gradspace.integrations.sentence_transformers\n"
        "assert not {'open_clip', 'sentence_transformers'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path, timeout=120)
