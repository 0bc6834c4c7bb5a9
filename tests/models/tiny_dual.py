"""Dual encoders of transformers, small and random, saved with tokenizer and image processor."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from models.tiny import MEAN, SIDE, STD, TRANSFORMER
from PIL import Image

from gradspace.data.open import open_dataset
from gradspace.models import ImageInput, TextInput, build_model
from gradspace.models.dual import DualEncoder

SPECIAL = ["<pad>", "</s>", "<s>", "<unk>"]
PAD, END, START, UNKNOWN = range(4)
VOCABULARY = 300
LONGEST = 24
CAPTIONS = ["a dog", "two red dogs run over the big green field", "", "sleeping cats, " * 20]

VISION = {**TRANSFORMER, "image_size": SIDE, "patch_size": 8}
TEXT = {**TRANSFORMER, "vocab_size": VOCABULARY, "max_position_embeddings": LONGEST}
SQUARE = {"height": SIDE, "width": SIDE}
NORMALISED = {"image_mean": MEAN, "image_std": STD, "resample": 3}
CLIP_PIXELS = {"size": {"shortest_edge": SIDE}, "crop_size": SQUARE, **NORMALISED}


def write_tokenizer(folder: Path, *, ends_only: bool = False) -> None:
    """Words of the built-in captions; CLIP marks both ends of a caption, SigLIP its end."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    captions = (
        open_dataset("scenes", num_train=64, num_dev=40, num_test=40).splits["train"].captions
    )
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(vocab_size=VOCABULARY, special_tokens=SPECIAL)
    tokenizer.train_from_iterator(captions, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>" if ends_only else "<s> $A </s>",
        special_tokens=[("<s>", START), ("</s>", END)],
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=LONGEST,
        model_input_names=["input_ids"] if ends_only else ["input_ids", "attention_mask"],
    ).save_pretrained(folder)


def write_sentencepiece(folder: Path) -> None:
    """SigLIP's own tokenizer, in place of the other."""
    import sentencepiece

    split = open_dataset("scenes", num_train=64, num_dev=40, num_test=40).splits["train"]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(split.captions),
        model_prefix=str(folder / "spiece"),
        vocab_size=120,
        minloglevel=2,
    )
    (folder / "tokenizer.json").unlink()
    settings = {
        "tokenizer_class": "SiglipTokenizer",
        "model_max_length": LONGEST,
        "model_input_names": ["input_ids"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def save(folder: Path, network: Any, pixels: dict[str, Any], *, ends_only: bool = False) -> Path:
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() == 1:  # not all alike, so that mistakes in their use show
                parameter.add_(0.1 * torch.randn_like(parameter))
    network.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels))
    write_tokenizer(folder, ends_only=ends_only)
    return folder


def clip(folder: Path, **text: Any) -> Path:
    from transformers import CLIPConfig, CLIPModel

    marks = {"eos_token_id": END, "bos_token_id": START, "pad_token_id": PAD}
    config = CLIPConfig(
        text_config={**TEXT, **marks, **text}, vision_config=VISION, projection_dim=16
    )
    return save(folder, CLIPModel(config), CLIP_PIXELS)


def siglip(folder: Path) -> Path:
    from transformers import SiglipConfig, SiglipModel

    config = SiglipConfig(text_config={**TEXT, "projection_size": 16}, vision_config=VISION)
    return save(folder, SiglipModel(config), {"size": SQUARE, **NORMALISED}, ends_only=True)


def siglip2(folder: Path) -> Path:
    """The one that keeps the ratio of sides; others of SigLIP 2 are saved as SigLIP."""
    from transformers import Siglip2Config, Siglip2Model

    vision = {**TRANSFORMER, "patch_size": 8, "num_patches": 16}
    config = Siglip2Config(text_config={**TEXT, "projection_size": 16}, vision_config=vision)
    pixels = {"patch_size": 8, "max_num_patches": 16, **NORMALISED}
    return save(folder, Siglip2Model(config), pixels, ends_only=True)


def align(folder: Path) -> Path:
    from transformers import AlignConfig, AlignModel

    vision = {
        "hidden_dim": 16,
        "width_coefficient": 1.0,
        "depth_coefficient": 1.0,
        "in_channels": [32, 8],
        "out_channels": [8, 16],
        "kernel_sizes": [3, 3],
        "strides": [1, 2],
        "num_block_repeats": [1, 1],
        "expand_ratios": [1, 2],
    }
    config = AlignConfig(text_config=TEXT, vision_config=vision, projection_dim=16)
    pixels = {
        "image_processor_type": "EfficientNetImageProcessor",
        "do_normalize": False,
        "rescale_factor": 1 / 127.5,
        "rescale_offset": True,
        "include_top": False,
        "size": {"height": 40, "width": 40},
        "crop_size": SQUARE,
        "do_center_crop": True,
    }
    return save(folder, AlignModel(config), pixels)


def altclip(folder: Path) -> Path:
    from transformers import AltCLIPConfig, AltCLIPModel

    text = {**TEXT, "max_position_embeddings": LONGEST + 2, "project_dim": 16}
    config = AltCLIPConfig(text_config=text, vision_config=VISION, projection_dim=16)
    return save(folder, AltCLIPModel(config), CLIP_PIXELS)


def chinese_clip(folder: Path) -> Path:
    from transformers import ChineseCLIPConfig, ChineseCLIPModel

    config = ChineseCLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=16)
    pixels = {"size": SQUARE, "crop_size": SQUARE, "do_center_crop": False, **NORMALISED}
    return save(folder, ChineseCLIPModel(config), pixels)


def metaclip_2(folder: Path) -> Path:
    from transformers import MetaClip2Config, MetaClip2Model

    marks = {"eos_token_id": END, "bos_token_id": START, "pad_token_id": PAD}
    config = MetaClip2Config(text_config={**TEXT, **marks}, vision_config=VISION, projection_dim=16)
    return save(folder, MetaClip2Model(config), CLIP_PIXELS)


FAMILIES: dict[str, Callable[[Path], Path]] = {
    "align": align,
    "altclip": altclip,
    "chinese_clip": chinese_clip,
    "clip": clip,
    "metaclip_2": metaclip_2,
    "siglip": siglip,
    "siglip2": siglip2,
}


def photos() -> list[Image.Image]:
    """Draw photos of several shapes, with soft and hard edges."""
    rng = np.random.default_rng(0)
    sizes = [(50, 41), (41, 50), (32, 32), (97, 33)]
    return [
        Image.fromarray(rng.integers(256, size=(6, 6, 3), dtype=np.uint8)).resize(size)
        for size in sizes
    ]


def build(folder: Path, **parameters: Any) -> DualEncoder:
    """The model around a folder, with its parameters."""
    inputs = ImageInput(backbone=folder), TextInput(encoder=folder)
    torch.manual_seed(0)
    model = build_model("dual", image_input=inputs[0], text_input=inputs[1], **parameters)
    assert isinstance(model, DualEncoder)
    return model
