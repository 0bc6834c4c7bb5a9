"""Pretrained dual encoders: what plain transformers computes, and what of it is trained."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from models import tiny_dual
from models.tiny_dual import build
from torch import Tensor
from torch.nn.functional import normalize

import gradspace as gs
from gradspace.models.dual import DualEncoder
from gradspace.models.families import FAMILIES, part_of
from gradspace.runs.embed import embed_captions, embed_pictures
from gradspace.runs.system import load_system


@pytest.fixture(params=FAMILIES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(kind: str, tmp_path: Path) -> Path:
    torch.manual_seed(0)
    return tiny_dual.FAMILIES[kind](tmp_path / kind)


def plain_outputs(folder: Path) -> tuple[Tensor, Tensor]:
    """By transformers alone, as its documentation says: the whole model on the whole processor."""
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

    network = AutoModel.from_pretrained(folder, use_safetensors=True).eval()
    pixels = AutoImageProcessor.from_pretrained(folder)(tiny_dual.photos(), return_tensors="pt")
    fixed = "siglip" in network.config.model_type
    tokens = AutoTokenizer.from_pretrained(folder)(
        tiny_dual.CAPTIONS,
        padding="max_length" if fixed else True,
        truncation=True,
        return_tensors="pt",
    )
    tokens.pop("token_type_ids", None)
    with torch.no_grad():
        output = network(**pixels, **tokens)
    return normalize(output.image_embeds, dim=-1), normalize(output.text_embeds, dim=-1)


def batch(model: DualEncoder) -> tuple[Tensor, Tensor, Tensor]:
    pixels = torch.stack([model.dual.processor(photo) for photo in tiny_dual.photos()])
    lengths = torch.full((4,), tiny_dual.LONGEST)
    tokens = torch.randint(4, tiny_dual.VOCABULARY, (4, tiny_dual.LONGEST))
    tokens[:, -1] = tiny_dual.END
    return pixels, tokens, lengths


def trainable(model: DualEncoder) -> set[str]:
    return {name for name, p in model.dual.network.named_parameters() if p.requires_grad}


def changed_by_a_step(model: DualEncoder) -> set[str]:
    before = {name: p.clone() for name, p in model.dual.network.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameter_groups(1.0))
    model.train()
    for _ in range(2):  # in the first one the adapters' A get a gradient of zero
        optimizer.zero_grad()
        gs.RetrievalLoss("nt-xent")(*model(*batch(model))).backward()
        optimizer.step()
    after = model.dual.network.state_dict()
    return {name for name in before if not torch.equal(before[name], after[name])}


# --- the same as plain transformers ---------------------------------------------------------------


def test_embeddings_are_those_of_plain_transformers(folder: Path) -> None:
    images, texts = plain_outputs(folder)
    system = load_system(folder, torch.device("cpu"))
    torch.testing.assert_close(
        embed_pictures(system, tiny_dual.photos()), images, rtol=0, atol=1e-6
    )
    torch.testing.assert_close(embed_captions(system, tiny_dual.CAPTIONS), texts, rtol=0, atol=1e-6)


def test_the_end_of_a_caption_where_the_configuration_is_old(tmp_path: Path) -> None:
    """CLIP was published with eos_token_id 2: the end is then the token with the highest number."""
    folder = tiny_dual.clip(tmp_path / "clip", eos_token_id=2)
    _, texts = plain_outputs(folder)
    system = load_system(folder, torch.device("cpu"))
    torch.testing.assert_close(embed_captions(system, tiny_dual.CAPTIONS), texts, rtol=0, atol=1e-6)


def test_the_tokenizer_that_siglip_was_published_with(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    folder = tiny_dual.siglip(tmp_path / "siglip")
    tiny_dual.write_sentencepiece(folder)
    _, texts = plain_outputs(folder)
    system = load_system(folder, torch.device("cpu"))
    torch.testing.assert_close(embed_captions(system, tiny_dual.CAPTIONS), texts, rtol=0, atol=1e-6)


def test_a_caption_does_not_depend_on_its_batch(folder: Path) -> None:
    system = load_system(folder, torch.device("cpu"))
    together = embed_captions(system, tiny_dual.CAPTIONS)
    alone = torch.cat([embed_captions(system, [caption]) for caption in tiny_dual.CAPTIONS])
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-6)


def test_half_precision_is_near(folder: Path) -> None:
    model = build(folder).eval()
    full = model(*batch(model))
    with torch.autocast("cpu", torch.bfloat16):
        torch.manual_seed(0)
        half = model(*batch(model))
    assert half[0].dtype == torch.float32
    torch.manual_seed(0)
    full = model(*batch(model))
    torch.testing.assert_close(half, full, rtol=0.1, atol=0.1)


# --- what is trained ------------------------------------------------------------------------------


def test_everything_that_the_embeddings_depend_on_is_trained(folder: Path) -> None:
    model = build(folder)
    parts = {part_of(name) for name in trainable(model)}
    assert parts == {"image", "text", "projection"}
    unmoved = trainable(model) - changed_by_a_step(model)
    assert all("bias" in name for name in unmoved), unmoved  # of keys: their gradient is zero


def test_the_last_layers(kind: str, folder: Path) -> None:
    model = build(folder, train="last-1")
    names = trainable(model)
    assert changed_by_a_step(model) <= names | _statistics(model)
    assert not any("embeddings" in name or "pre_layrnorm" in name for name in names)
    text = {name for name in names if name.startswith("text_model.")}
    assert all(".0." not in name for name in text), "the first of two layers"
    assert any(".1." in name for name in text)
    assert any(part_of(name) == "projection" for name in names)
    if kind == "align":
        assert any("vision_model.encoder.blocks.1." in name for name in names)
        assert not any("vision_model.encoder.blocks.0." in name for name in names)
    else:
        assert any("vision_model.encoder.layers.1." in name for name in names)
        assert any("vision_model.post_layernorm" in name for name in names)
        assert not any("vision_model.encoder.layers.0." in name for name in names)


def _statistics(model: DualEncoder) -> set[str]:
    return {name for name, _ in model.dual.network.named_buffers()}


def test_the_projection_alone(folder: Path) -> None:
    model = build(folder, train="projection")
    names = trainable(model)
    assert names
    assert all("projection" in name or ".head." in name for name in names)
    assert changed_by_a_step(model) <= names


def test_what_is_frozen_stays_in_evaluation_mode(tmp_path: Path) -> None:
    """ALIGN has dropout in the text tower and BatchNorm in the image tower."""
    model = build(tiny_dual.align(tmp_path), train="last-1", image_rate=0.0).train()
    modes = {name: module.training for name, module in model.dual.network.named_modules()}
    assert not any(on for name, on in modes.items() if name.startswith("vision_model"))
    assert not modes["text_model.embeddings.dropout"]
    assert not modes["text_model.encoder.layer.0.attention.output.dropout"]
    assert modes["text_model.encoder.layer.1.attention.output.dropout"]
    assert not any(module.training for module in model.eval().modules())
    assert not any(".running_" in name for name in changed_by_a_step(model))


def test_learning_rates_of_the_parts(tmp_path: Path) -> None:
    folder = tiny_dual.siglip(tmp_path)
    model = build(folder, image_rate=0.0, text_rate=0.1, learn_temperature=True)
    groups = {group["name"]: group for group in model.parameter_groups(1e-3)}
    assert {name: group["lr"] for name, group in groups.items()} == {
        "text": pytest.approx(1e-4),
        "projection": 1e-3,
        "temperature": 1e-3,
    }
    assert groups["temperature"]["weight_decay"] == 0
    assert len(groups["temperature"]["params"]) == 2


# --- LoRA -----------------------------------------------------------------------------------------


def test_lora_starts_as_the_network_and_trains_adapters_only(folder: Path) -> None:
    pytest.importorskip("peft")
    model, plain = build(folder, train="lora").eval(), build(folder).eval()
    inputs = batch(model)
    for found, expected in zip(model(*inputs), plain(*inputs), strict=True):
        assert torch.equal(found, expected)
    names = trainable(model)
    assert names
    assert all(".lora_A." in name or ".lora_B." in name for name in names)
    assert changed_by_a_step(model) == names


def test_lora_is_merged_exactly(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    from transformers import AutoModel

    model = build(folder, train="lora", lora_rank=2, lora_alpha=6)
    changed_by_a_step(model)
    model.eval().save_pretrained(tmp_path / "out")
    inputs = batch(model)
    merged = build(tmp_path / "out").eval()
    torch.testing.assert_close(model(*inputs), merged(*inputs), rtol=0, atol=1e-6)
    _, report = AutoModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]


def test_lora_without_peft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(
        ValueError, match=r"needs the package peft: .*pip install 'gradspace\[lora\]'"
    ):
        build(tiny_dual.clip(tmp_path), train="lora")
