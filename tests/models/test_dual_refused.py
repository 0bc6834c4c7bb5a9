"""Folders that are no dual encoder, or not a whole one: each is refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from models import tiny, tiny_dual
from models.tiny_dual import build

from gradspace.models import ImageInput, TextInput, build_model
from gradspace.runs.system import load_system


def test_a_network_of_another_kind(tmp_path: Path) -> None:
    message = "is a model of type bert, not a dual encoder of images and texts; .*clip.*siglip"
    with pytest.raises(ValueError, match=message):
        build(tiny.bert(tmp_path))


def test_missing_weights_are_listed(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(tiny_dual.clip(tmp_path) / "model.safetensors")
    gone = ["logit_scale", "text_projection.weight", "vision_model.embeddings.class_embedding"]
    for name in gone:
        del weights[name]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=f"lacks 3 weights of a CLIPModel: {', '.join(gone)}$"):
        build(tmp_path)


def test_weights_of_another_shape(tmp_path: Path) -> None:
    config = json.loads((tiny_dual.clip(tmp_path) / "config.json").read_text())
    config["projection_dim"] = 24
    (tmp_path / "config.json").write_text(json.dumps(config))
    message = (
        r"weights whose shapes do not match its config.json: text_projection.weight \[16, 16\] ins"
    )
    with pytest.raises(ValueError, match=message):
        build(tmp_path)


def test_pickled_weights_are_refused_with_the_way_to_convert_them(tmp_path: Path) -> None:
    tiny_dual.clip(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    message = r"only pickled weights \(pytorch_model.bin\), .*\.save_pretrained\('.*'\) writes one$"
    with pytest.raises(ValueError, match=message):
        build(tmp_path)


def test_pictures_of_another_size(tmp_path: Path) -> None:
    tiny_dual.siglip(tmp_path)
    model = build(tmp_path)
    with pytest.raises(ValueError, match=r"\['images', 3, 32, 32\], got \[2, 3, 48, 32\]"):
        model.embed_images(torch.zeros(2, 3, 48, 32))
    with pytest.raises(
        ValueError, match=r"expected normalised floating point pixels, got torch\.uint8"
    ):
        model.embed_images(tiny.pictures(2))
    settings = json.loads((tmp_path / "preprocessor_config.json").read_text())
    settings["size"] = {"height": 48, "width": 48}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    message = r"makes pictures of shape \[3, 48, 48\], but the network takes \[3, 32, 32\]$"
    with pytest.raises(ValueError, match=message):
        build(tmp_path)


def test_pictures_that_are_not_cut(tmp_path: Path) -> None:
    tiny_dual.clip(tmp_path)
    settings = {**tiny_dual.CLIP_PIXELS, "do_center_crop": False}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="keeps the aspect ratio of pictures"):
        build(tmp_path)


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("preprocessor_config.json", "has no preprocessor_config.json, which defines the size"),
        (
            "tokenizer.json",
            r"has no tokenizer: expected tokenizer.json or vocab\* or \*.model in it$",
        ),
    ],
)
def test_files_that_are_missing(tmp_path: Path, gone: str, message: str) -> None:
    (tiny_dual.clip(tmp_path) / gone).unlink()
    with pytest.raises(ValueError, match=message):
        load_system(tmp_path, torch.device("cpu"))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"train": "last"},
            "train of dual must be all, projection, lora, or last-N .*, got 'last'",
        ),
        ({"train": "last-3"}, "last-3, but the image tower has 2 layers: use all"),
        ({"image_rate": -1.0}, "image_rate of dual should be greater than or equal to 0"),
        ({"train": "projection", "projection_rate": 0.0}, "nothing is left to train"),
        ({"width": 3}, "dual has no parameter 'width'"),
    ],
)
def test_parameters_that_make_no_sense(
    tmp_path: Path, parameters: dict[str, Any], message: str
) -> None:
    folder = tiny_dual.clip(tmp_path)
    with pytest.raises(ValueError, match=message):
        build(folder, **parameters)


def test_captions_for_siglip_have_one_length(tmp_path: Path) -> None:
    model = build(tiny_dual.siglip(tmp_path))
    with pytest.raises(ValueError, match=r"captions have 2 to 5 tokens, .* padded to the same"):
        model.embed_texts(torch.ones(2, 5, dtype=torch.long), torch.tensor([2, 5]))


def test_one_network_for_both_sides(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"one network for images and texts: set model\.pretrained"
    ):
        build_model(
            "dual",
            image_input=ImageInput(shape=(5, 6)),
            text_input=TextInput(vocabulary_size=9),
        )


def test_a_tokenizer_that_needs_a_further_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoTokenizer

    def fail(name: str, **options: object) -> None:
        raise ImportError(
            "SiglipTokenizer requires the SentencePiece library but it was not\nfound"
        )

    folder = tiny_dual.siglip(tmp_path)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", fail)
    message = "without another package: SiglipTokenizer requires .* library; .*pip install"
    with pytest.raises(ValueError, match=message):
        load_system(folder, torch.device("cpu"))
