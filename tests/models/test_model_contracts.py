"""What every registered model owes its users; new ones are tested here unasked."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from models import tiny, tiny_dual
from safetensors.torch import load_file, save_file
from torch import Tensor

import gradspace as gs
from gradspace.models import (
    ImageInput,
    PairScorer,
    RetrievalModel,
    TextInput,
    build_model,
    model_info,
    models,
)
from gradspace.models.pretrained import Pretrained

NAMES = [info.name for info in models()]
PAIR_SCORERS = [info.name for info in models() if issubclass(info.build, PairScorer)]
VOCABULARY = 11


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("networks")
    return tiny.resnet(root / "image"), tiny.bert(root / "text")


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def duals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For models that are one pretrained network, another one in place of either input."""
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("duals")
    clip = tiny_dual.clip(root / "clip", eos_token_id=2)  # the highest token is the last one
    return {"features": clip, "networks": tiny_dual.align(root / "align")}


@pytest.fixture(params=["features", "networks"])
def inputs(
    request: pytest.FixtureRequest, name: str, folders: tuple[Path, Path], duals: dict[str, Path]
) -> dict[str, Any]:
    """Region features and a GRU, or pixels and BERT, both fine-tuned; or passages with either."""
    if model_info(name).pretrained:
        return dual_inputs(duals[request.param])
    passages = ImageInput(passages=True) if model_info(name).build.reads_passages else None
    if request.param == "features":
        image_input = passages or ImageInput(shape=(5, 12))
        return {"image_input": image_input, "text_input": TextInput(vocabulary_size=VOCABULARY)}
    image_input = passages or ImageInput(backbone=folders[0], fine_tune=True)
    return {"image_input": image_input, "text_input": TextInput(encoder=folders[1])}


def dual_inputs(folder: Path, **options: Any) -> dict[str, Any]:
    image_input = ImageInput(backbone=folder, **options)
    return {"image_input": image_input, "text_input": TextInput(encoder=folder, **options)}


@pytest.fixture
def small(name: str) -> dict[str, Any]:
    (info,) = (info for info in models() if info.name == name)
    return {"width": 16} if "width" in info.parameters else {}


@pytest.fixture
def model(name: str, inputs: dict[str, Any], small: dict[str, Any]) -> RetrievalModel:
    torch.manual_seed(0)
    return build_model(name, **inputs, **small)


@pytest.fixture
def batch(name: str, inputs: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    if inputs["image_input"].passages:
        tokens, lengths = tiny.captions(6, VOCABULARY, longest=9, seed=1)
        return torch.cat([lengths[:, None], tokens], 1), *tiny.captions(6, VOCABULARY)
    pixels = inputs["image_input"].backbone is not None
    images = tiny.pictures(6) if pixels else torch.randn(6, 5, 12, generator=generator)
    if model_info(name).pretrained:
        images = images / 127.5 - 1
    return images, *tiny.captions(6, VOCABULARY)


def test_says_what_it_is_and_where_it_is_from(name: str) -> None:
    (info,) = (info for info in models() if info.name == name)
    assert info.summary
    assert any(character.isdigit() for character in info.source), "a year"
    assert {"epochs", "learning_rate", "batch_size"} <= info.training.keys()


def loss_of(
    objective: str, model: RetrievalModel, batch: tuple[Tensor, ...], half: bool = False
) -> Tensor:
    """Loss of embeddings or pair scores, which are float32 in any computing precision."""
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        images, texts = model(*batch)
        assert images.dtype == texts.dtype == torch.float32
        if not isinstance(model, PairScorer):
            extra = model.extra_loss()
            value: Tensor = gs.RetrievalLoss(objective)(images, texts)
            return value if extra is None else value + extra
        scores = model.score(images, texts, batch[2])
        assert scores.dtype == torch.float32
        return gs.RetrievalLoss(objective).of_scores(scores)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in PAIR_SCORERS])
def test_embeddings_are_unit_vectors_of_one_width(
    model: RetrievalModel, batch: tuple[Tensor, ...]
) -> None:
    for embeddings in (*model(*batch), *model.eval()(*batch)):
        assert embeddings.shape == (6, model.width)
        torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(6))


@pytest.mark.parametrize("name", PAIR_SCORERS)
def test_parts_of_pair_scorers_end_with_the_last_word(
    model: RetrievalModel, batch: tuple[Tensor, Tensor, Tensor]
) -> None:
    assert isinstance(model, PairScorer)
    images, texts = model.eval()(*batch)
    assert images.shape[::2] == (6, model.width)
    assert texts.shape == (*batch[1].shape, model.width)
    present = torch.arange(texts.shape[1]) < batch[2][:, None]
    assert torch.equal(texts.abs().sum(2) > 0, present)
    assert model.score(images, texts, batch[2]).shape == (6, 6)
    pairs = model.score_pairs(images, texts, batch[2])
    torch.testing.assert_close(pairs, model.score(images, texts, batch[2]).diagonal())


def test_an_embedding_does_not_depend_on_its_batch(
    model: RetrievalModel, batch: tuple[Tensor, Tensor, Tensor]
) -> None:
    """Nor on the padding, nor on the order of the captions."""
    model.eval().double()
    images, tokens, lengths = batch
    images = images.double() if images.is_floating_point() else images
    together = model(images, torch.nn.functional.pad(tokens, (0, 3)), lengths)
    for i, length in enumerate(lengths):
        alone = model(images[i : i + 1], tokens[i : i + 1, :length], lengths[i : i + 1])
        for embedding, others in zip(alone, together, strict=True):
            assert embedding.dtype == torch.float64
            rows = (slice(None, int(length)),) if isinstance(model, PairScorer) else ()
            torch.testing.assert_close(embedding[0][rows], others[i][rows])


def test_what_is_explained_adds_up_to_the_score(
    model: RetrievalModel, batch: tuple[Tensor, Tensor, Tensor]
) -> None:
    images, texts = model.eval()(*batch)
    explained = model.explain(*batch)
    if explained is None:
        return  # a model need not be able to tell
    if isinstance(model, PairScorer):
        scores = model.score_pairs(images, texts, batch[2])
    else:
        scores = (images * texts).sum(1)
    torch.testing.assert_close(explained.scores, scores)
    sides = [side for side in (explained.words, explained.regions) if side is not None]
    assert sides
    for side in sides:
        torch.testing.assert_close(side.sum(1), scores)
    if explained.words is not None:
        assert explained.words.shape == batch[1].shape
        assert not explained.words[torch.arange(batch[1].shape[1]) >= batch[2][:, None]].any()


def test_evaluation_is_deterministic(model: RetrievalModel, batch: tuple[Tensor, ...]) -> None:
    model.eval()
    for first, second in zip(model(*batch), model(*batch), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("half", [False, True])
def test_every_trainable_parameter_gets_a_finite_gradient(
    model: RetrievalModel, batch: tuple[Tensor, ...], half: bool
) -> None:
    torch.autograd.backward(loss_of("nt-xent", model, batch, half))
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
        if parameter.grad is not None:
            assert parameter.grad.isfinite().all(), name
    if half:
        full = model.eval()(*batch)
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(model(*batch), full, rtol=0.1, atol=0.1)


def test_parameter_groups_hold_every_trainable_parameter_once(model: RetrievalModel) -> None:
    groups = model.parameter_groups(1e-3)
    assert all(group["params"] for group in groups)
    held = [parameter for group in groups for parameter in group["params"]]
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert len(held) == len(trainable)
    assert set(held) == set(trainable)
    torch.optim.AdamW(groups, lr=1e-3)


def test_state_survives_safetensors_and_a_rebuild_from_saved_configs(
    model: RetrievalModel,
    name: str,
    inputs: dict[str, Any],
    small: dict[str, Any],
    batch: tuple[Tensor, ...],
    tmp_path: Path,
) -> None:
    model(*batch)
    for part in model.modules():
        if isinstance(part, Pretrained):
            part.save_config(tmp_path / part.kind)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    if model_info(name).pretrained:
        inputs = dual_inputs(tmp_path / "pretrained", pretrained=False)
    elif inputs["image_input"].backbone:
        backbone = ImageInput(backbone=tmp_path / "backbone", pretrained=False)
        inputs = {**inputs, "image_input": backbone}
    if inputs["text_input"].encoder and not model_info(name).pretrained:
        encoder = TextInput(encoder=tmp_path / "text_encoder", pretrained=False)
        inputs = {**inputs, "text_input": encoder}
    again = build_model(name, **inputs, **small)
    again.load_state_dict(load_file(tmp_path / "model.safetensors"))
    for expected, found in zip(model.eval()(*batch), again.eval()(*batch), strict=True):
        assert torch.equal(expected, found)


def test_can_be_copied_after_a_training_step(
    model: RetrievalModel, batch: tuple[Tensor, ...]
) -> None:
    """As an average of weights does it."""
    sum(part.sum() for part in model(*batch)).backward()
    model.extra_loss()  # what it hands over holds a graph
    copied = copy.deepcopy(model).eval()
    assert torch.equal(copied(*batch)[0], model.eval()(*batch)[0])


@pytest.mark.slow
def test_a_few_steps_reduce_the_loss(model: RetrievalModel, batch: tuple[Tensor, ...]) -> None:
    """All negatives at first, so that hard ones do not make everything alike, then the hardest."""
    optimizer = torch.optim.Adam(model.parameter_groups(1e-2))
    before = loss_of("triplet-hard", model.eval(), batch)
    model.train()
    for objective in 30 * ["triplet"] + 30 * ["triplet-hard"]:
        optimizer.zero_grad()
        torch.autograd.backward(loss_of(objective, model, batch))
        optimizer.step()
    assert loss_of("triplet-hard", model.eval(), batch) < 0.5 * before
