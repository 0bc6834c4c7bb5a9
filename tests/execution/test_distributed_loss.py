"""The loss of several processes: the value and the gradient of one with the whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from embedded import Embedded, Outcome, embedded, outcome
from repeated import repeated
from safetensors.torch import load_file, save_file
from samples import STATISTICS
from several import together
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradspace as gs
from gradspace import processes

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

# How many images and texts each process has.
SHARES = {2: ([9, 14], [40, 17]), 4: ([5, 0, 11, 7], [20, 13, 0, 24])}


def own_part(batch: Embedded) -> Embedded:
    """What this process has of a batch."""
    images, texts = SHARES[processes.world_size()]
    image, text = (slice_of(sizes, processes.rank()) for sizes in (images, texts))
    return Embedded(batch[0][image], batch[1][text], batch[2][image], batch[3][text])


def slice_of(sizes: Sequence[int], rank: int) -> slice:
    return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


def put_together(folder: Path, number: int, name: str) -> Outcome:
    """The outcome of all processes; gradients are divided by their number, as a mean does."""
    parts = [load_file(folder / f"{rank}.safetensors") for rank in range(number)]
    values = [part[f"{name} value"] for part in parts]
    assert all(torch.equal(value, values[0]) for value in values)
    gradients = [
        torch.cat([part[f"{name} {side}"] for part in parts]) / number
        for side in ("images", "texts")
    ]
    return Outcome(values[0], *gradients)


def write_losses(folder: Path, options: Sequence[dict[str, Any]]) -> None:
    found = {}
    for number, option in enumerate(options):
        for name in STATISTICS:
            loss = gs.RetrievalLoss(name, **option)
            for seed in (0, 1) if "memory" in option else (0,):
                result = outcome(loss, own_part(embedded(seed=seed)), scale=2.5)
            for what, tensor in zip(("value", "images", "texts"), result, strict=True):
                found[f"{number} {name} {what}"] = tensor.contiguous()
    save_file(found, folder / f"{processes.rank()}.safetensors")


OPTIONS: list[dict[str, Any]] = [
    {"reduction": "sum", "tile": 8},
    {"reduction": "mean", "tile": 64},
    {"memory": 31, "normalize": True},
]


@pytest.fixture(scope="module", params=[2, 4])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Every statistic with every option, in so many processes."""
    folder = tmp_path_factory.mktemp("losses")
    together(request.param, write_losses, folder, OPTIONS)
    return folder, request.param


@pytest.mark.parametrize("number", range(len(OPTIONS)), ids=["sum", "mean", "memory"])
@pytest.mark.parametrize("name", STATISTICS)
@pytest.mark.slow
def test_every_statistic(found: Any, number: int, name: str) -> None:
    loss = gs.RetrievalLoss(name, execution="streamed", **OPTIONS[number])
    for seed in (0, 1) if "memory" in OPTIONS[number] else (0,):
        expected = outcome(loss, embedded(seed=seed), scale=2.5)
    folder, num_processes = found
    together = put_together(folder, num_processes, f"{number} {name}")
    torch.testing.assert_close(together, expected, rtol=1e-8, atol=1e-10)


def write_by_name_and_position(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SHARES, 2, ([9, 14], [13, 10]))
        batch = own_part(embedded(num_texts=23))
    names = {f"{side}_ids": [f"id {i}" for i in ids.tolist()] for side, ids in _ids(batch).items()}
    found = {}
    same = embedded(
        num_images=9 if processes.rank() else 14, num_texts=9 if processes.rank() else 14
    )
    for label, one, ids in (("names", batch, names), ("position", same, {"image_ids": None})):
        result = outcome(gs.RetrievalLoss("nt-xent"), one, **ids)
        for what, tensor in zip(("value", "images", "texts"), result, strict=True):
            found[f"{label} {what}"] = tensor
    save_file(found, folder / f"{processes.rank()}.safetensors")


def _ids(batch: Embedded) -> dict[str, torch.Tensor]:
    return {"image": batch.image_ids, "text": batch.text_ids}


@pytest.mark.slow
def test_names_and_positions(tmp_path: Path) -> None:
    together(2, write_by_name_and_position, tmp_path)
    expected = outcome(gs.RetrievalLoss("nt-xent"), embedded(num_texts=23))
    torch.testing.assert_close(put_together(tmp_path, 2, "names"), expected)
    parts = [embedded(num_images=n, num_texts=n) for n in (14, 9)]
    whole = Embedded(*(torch.cat(both) for both in zip(*parts, strict=True)))
    expected = outcome(gs.RetrievalLoss("nt-xent"), whole, image_ids=None)
    torch.testing.assert_close(put_together(tmp_path, 2, "position"), expected)


def write_several_ids(folder: Path) -> None:
    found = {}
    for label, memory in (("now", 0), ("past", 31)):
        loss = gs.RetrievalLoss("circle/sigmoid-ms", memory=memory)
        for seed in (0, 1) if memory else (0,):
            result = outcome(loss, own_part(repeated(seed)[0]))
        for what, tensor in zip(("value", "images", "texts"), result, strict=True):
            found[f"{label} {what}"] = tensor.contiguous()
    save_file(found, folder / f"{processes.rank()}.safetensors")


@pytest.mark.slow
def test_images_that_belong_to_several_texts(tmp_path: Path) -> None:
    together(2, write_several_ids, tmp_path)
    expected = outcome(gs.RetrievalLoss("circle/sigmoid-ms"), repeated()[0])
    torch.testing.assert_close(put_together(tmp_path, 2, "now"), expected)
    loss = gs.RetrievalLoss("circle/sigmoid-ms", memory=31)
    for seed in (0, 1):
        expected = outcome(loss, repeated(seed)[0])
    torch.testing.assert_close(put_together(tmp_path, 2, "past"), expected)


# --- encoders -----------------------------------------------------------------------------------


def write_encoder_gradients(folder: Path, kind: str) -> None:
    """Gradients of an encoder wrapped as in training code."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(6, 8, dtype=torch.float64), nn.Tanh())
    wrapped: nn.Module = encoder
    if kind == "ddp":
        wrapped = DistributedDataParallel(encoder)
    elif kind == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        wrapped = fully_shard(encoder, mesh=mesh)  # type: ignore[assignment]
    batch = own_part(embedded()) if kind != "one" else embedded()
    both = wrapped(torch.cat([batch.images, batch.texts]))
    images, texts = both.split([len(batch.images), len(batch.texts)])
    loss = gs.RetrievalLoss("circle/sigmoid-ms", normalize=True)
    loss(images, texts, batch.image_ids, batch.text_ids).backward()
    found = {}
    for name, parameter in encoder.named_parameters():
        gradient: Any = parameter.grad
        found[name] = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    save_file(found, folder / f"{kind} {processes.rank()}.safetensors")


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.slow
def test_wrapped_encoders(kind: str, tmp_path: Path) -> None:
    write_encoder_gradients(tmp_path, "one")
    together(2, write_encoder_gradients, tmp_path, kind)
    expected = load_file(tmp_path / "one 0.safetensors")
    for rank in range(2):
        found = load_file(tmp_path / f"{kind} {rank}.safetensors")
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


# --- what goes wrong ----------------------------------------------------------------------------


def write_errors(folder: Path) -> None:
    """One process is different, or has bad input; all must say the same, and none may wait."""
    different = processes.rank() == 1
    batch = own_part(embedded())
    nan = batch._replace(texts=batch.texts * torch.nan)
    wide = batch._replace(images=batch.images.repeat(1, 2), texts=batch.texts.repeat(1, 2))
    half = batch._replace(images=batch.images.float(), texts=batch.texts.float())
    lonely = batch._replace(text_ids=batch.text_ids + 1000)
    attempts = {
        "objective": (gs.RetrievalLoss("triplet" if different else "nt-xent"), batch),
        "width": (gs.RetrievalLoss("triplet"), wide if different else batch),
        "type": (gs.RetrievalLoss("triplet"), half if different else batch),
        "nan": (gs.RetrievalLoss("triplet"), nan if different else batch),
        "pairs": (gs.RetrievalLoss("triplet"), lonely),
    }
    said = []
    for name, (loss, one) in attempts.items():
        try:
            loss(*one)
        except ValueError as error:
            said.append(f"{name}: {error}")
    (folder / f"{processes.rank()}.txt").write_text("\n".join(said))


@pytest.mark.slow
def test_all_processes_fail_with_the_same_sentence(tmp_path: Path) -> None:
    together(4, write_errors, tmp_path)
    first, *others = ((tmp_path / f"{rank}.txt").read_text() for rank in range(4))
    assert all(other == first for other in others)
    said = dict(line.split(": ", 1) for line in first.splitlines() if ": " in line)
    assert "process 0 has RetrievalLoss(NTXent" in said["objective"]
    assert "process 1 has RetrievalLoss(Triplet" in said["objective"]
    assert "width 6" in said["width"]
    assert "process 1 has" in said["width"]
    assert "width 12" in said["width"]
    assert "torch.float32" in said["type"]
    assert said["nan"].startswith("process 1 of 4: texts has NaN or infinite values in 13 of 13")
    assert said["pairs"].startswith("no image id equals a text id")
