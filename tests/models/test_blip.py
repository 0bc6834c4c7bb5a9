"""BLIP from a folder of transformers: its embeddings and scores are those of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models import tiny
from PIL import Image
from typer.testing import CliRunner

from gradspace.cli import app
from gradspace.data.open import open_dataset
from gradspace.models.blip import Blip, is_blip
from gradspace.runs.represent import embed_split, rerank_split
from gradspace.runs.system import load_system


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small and random, with the tokenizer of a small BERT."""
    from transformers import BlipConfig, BlipForImageTextRetrieval

    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("blip")
    tiny.bert(root)
    (root / "model.safetensors").unlink()
    text = {"vocab_size": len(tiny.WORDS), "max_position_embeddings": 16, "encoder_hidden_size": 16}
    config = BlipConfig(
        text_config={**tiny.TRANSFORMER, **text, "bos_token_id": 2, "sep_token_id": 3},
        vision_config={**tiny.TRANSFORMER, "image_size": tiny.SIDE, "patch_size": 8},
        image_text_hidden_size=12,
    )
    size = {"height": tiny.SIDE, "width": tiny.SIDE}
    return tiny.save(root, BlipForImageTextRetrieval(config), size)


def plain(folder: Path) -> Any:
    from transformers import BlipForImageTextRetrieval

    return BlipForImageTextRetrieval.from_pretrained(folder).eval()


@torch.no_grad()
def test_scores_are_those_of_transformers(folder: Path) -> None:
    model, network = Blip(folder).eval(), plain(folder)
    pixels = torch.randn(4, 3, tiny.SIDE, tiny.SIDE)
    tokens, lengths = tiny.captions(4, len(tiny.WORDS))
    mask = (torch.arange(tokens.shape[1]) < lengths[:, None]).long()
    given = {"input_ids": tokens, "pixel_values": pixels, "attention_mask": mask}
    cosines = network(**given, use_itm_head=False).itm_score
    images, texts = model(pixels, tokens, lengths)
    torch.testing.assert_close(images @ texts.t(), cosines, rtol=0, atol=1e-5)
    logits = network(**given).itm_score
    regions, words = model.parts_of_images(pixels), model.parts_of_texts(tokens, lengths)
    scores = model.score_pairs(regions, words, lengths)
    torch.testing.assert_close(scores, logits[:, 1] - logits[:, 0], rtol=0, atol=1e-5)
    torch.testing.assert_close(scores.sigmoid(), logits.softmax(1)[:, 1], rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_split_is_proposed_and_ordered(folder: Path) -> None:
    """Whole pictures in, resized as BLIP's own processor does it."""
    split = open_dataset("scenes", num_train=4, num_dev=4, num_test=6).splits["test"]
    system, network = load_system(folder, torch.device("cpu")), plain(folder)
    found = embed_split(system, split)
    by_text = rerank_split(system, split, found, top=3).by_text.matrix
    alone = rerank_split(system, split, found, top=3, proposal_weight=0).by_text.matrix
    assert split.images is not None
    pixels = torch.stack([as_processor(split.images.load(i)) for i in range(6)])
    tokens, _ = system.encode([split.captions[7]])
    cosines = network(tokens.expand(6, -1), pixels, use_itm_head=False).itm_score[:, 0]
    torch.testing.assert_close(found.images @ found.texts[7], cosines, rtol=0, atol=1e-5)
    logits = network(tokens.expand(6, -1), pixels).itm_score
    best = cosines.topk(3).indices
    expected = (logits[:, 1] - logits[:, 0])[best]
    torch.testing.assert_close(alone[7, best], expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(by_text[7, best], expected + cosines[best], rtol=0, atol=1e-5)
    others = [i for i in range(6) if i not in best.tolist()]
    assert by_text[7, others].max() < by_text[7, best].min()


def as_processor(picture: Image.Image) -> torch.Tensor:
    resized = picture.resize((tiny.SIDE, tiny.SIDE), Image.Resampling.BICUBIC)
    mean, std = (torch.tensor(values)[:, None, None] for values in (tiny.MEAN, tiny.STD))
    pixels = torch.from_numpy(np.asarray(resized).copy()).permute(2, 0, 1)
    return (pixels / 255 - mean) / std


@pytest.mark.slow
def test_the_command_line_evaluates_a_folder(folder: Path) -> None:
    told = CliRunner().invoke(
        app, ["evaluate", str(folder), "--data", "scenes", "--split", "dev", "--rerank", "2"]
    )
    assert told.exit_code == 0, told.output
    assert "its best 2 re-ranked" in told.output


def test_says_what_is_missing(folder: Path, tmp_path: Path) -> None:
    from transformers import BlipForConditionalGeneration

    config = plain(folder).config
    BlipForConditionalGeneration(config).save_pretrained(tmp_path)
    assert is_blip(tmp_path)
    with pytest.raises(ValueError, match=r"is a BLIP, but not one for retrieval: it lacks itm_h"):
        Blip(tmp_path)
    (folder / "preprocessor_config.json").rename(tmp_path / "away.json")
    with pytest.raises(ValueError, match="has no preprocessor_config"):
        load_system(folder)
    (tmp_path / "away.json").rename(folder / "preprocessor_config.json")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    assert not is_blip(tmp_path)
