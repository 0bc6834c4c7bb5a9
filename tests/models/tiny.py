"""Real transformers networks, small and random, saved the way people share them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SIDE = 32
"""Side of the pictures in pixels; that of patches is 8."""
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "dog", "red", "run", "##s", "the", "two"]

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.5)
TRANSFORMER: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}


def save(folder: Path, network: Any, size: Any = None) -> Path:
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() == 1:  # not all alike, so that mistakes in their use show
                parameter.add_(0.1 * torch.randn_like(parameter))
    network.save_pretrained(folder)
    preprocessing = {"image_mean": MEAN, "image_std": STD, "size": size or {"shortest_edge": SIDE}}
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessing))
    return folder


def resnet(folder: Path) -> Path:
    from transformers import ResNetConfig, ResNetModel

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    return save(folder, ResNetModel(config))


def vit(folder: Path) -> Path:
    """As image classifiers are published: without the weights of the pooler."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(image_size=SIDE, patch_size=8, **TRANSFORMER)
    return save(folder, ViTForImageClassification(config), {"height": SIDE, "width": SIDE})


def dinov2(folder: Path) -> Path:
    from transformers import Dinov2Config, Dinov2Model

    config = Dinov2Config(image_size=SIDE, patch_size=8, mlp_ratio=2, **TRANSFORMER)
    return save(folder, Dinov2Model(config))


def swin(folder: Path) -> Path:
    from transformers import SwinConfig, SwinModel

    config = SwinConfig(
        image_size=SIDE, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=4
    )
    return save(folder, SwinModel(config))


def clip(folder: Path) -> Path:
    """Both towers in one folder."""
    from transformers import CLIPConfig, CLIPModel

    text = {"vocab_size": 11, "max_position_embeddings": 16, "eos_token_id": 3, "bos_token_id": 2}
    config = CLIPConfig(
        text_config={**TRANSFORMER, **text},
        vision_config={**TRANSFORMER, "image_size": SIDE, "patch_size": 8},
        projection_dim=16,
    )
    return save(folder, CLIPModel(config))


def siglip(folder: Path) -> Path:
    from transformers import SiglipVisionConfig, SiglipVisionModel

    config = SiglipVisionConfig(image_size=SIDE, patch_size=8, **TRANSFORMER)
    return save(folder, SiglipVisionModel(config))


def bert(folder: Path) -> Path:
    """With a tokenizer of the eleven `WORDS`."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    config = BertConfig(vocab_size=len(WORDS), max_position_embeddings=16, **TRANSFORMER)
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", model_max_length=12
    ).save_pretrained(folder)
    return save(folder, BertModel(config))


VISION: dict[str, Callable[[Path], Path]] = {
    "resnet": resnet,
    "vit": vit,
    "dinov2": dinov2,
    "swin": swin,
    "clip": clip,
    "siglip": siglip,
}
NUM_CELLS = {"resnet": 16, "vit": 16, "dinov2": 16, "swin": 16, "clip": 16, "siglip": 16}


def pictures(count: int, seed: int = 0) -> Tensor:
    """uint8 pixels: coloured squares, with a little noise."""
    generator = torch.Generator().manual_seed(seed)
    squares = torch.randint(192, (count, 3, 2, 2), generator=generator, dtype=torch.uint8)
    noise = torch.randint(64, (count, 3, SIDE, SIDE), generator=generator, dtype=torch.uint8)
    return squares.repeat_interleave(SIDE // 2, 2).repeat_interleave(SIDE // 2, 3) + noise


def captions(count: int, vocabulary_size: int, longest: int = 6, seed: int = 0) -> Any:
    """Tokens padded with 0, and lengths between 2 and `longest`, the longest not always there."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, longest + 1, (count,), generator=generator)
    tokens = torch.randint(1, vocabulary_size, (count, longest), generator=generator)
    return tokens.where(torch.arange(longest) < lengths[:, None], 0), lengths
