"""BLIP for retrieval, with published weights: embeddings that propose, and a pair scorer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradspace.models.contract import Reranker, unit
from gradspace.models.pooling import length_mask
from gradspace.models.pretrained import one_sentence, place_of, quietly, refuse_pickles


class Blip(Reranker):
    """transformers' BlipForImageTextRetrieval from a folder (Li et al. 2022), for evaluation.

    A single text encoder reads a text twice: alone, to embed it, and with cross-attention to the
    image in every layer, to score the pair by the log of the odds that they belong together. So
    the parts of a text are its words before the first layer.

    The published code changes the first token for the second reading; transformers does not, and
    neither does this. In re-ranking it adds the cosine to the score (`proposal_weight`).
    """

    name = "blip"

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.network: Any = _load(folder)
        self.width = int(self.network.config.image_text_hidden_size)

    @property
    def proposal_weight(self) -> float:
        return 1.0

    def parts_of_images(self, images: Tensor) -> Tensor:
        states: Tensor = self.network.vision_model(pixel_values=images).last_hidden_state
        return states

    def parts_of_texts(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        present = length_mask(lengths.to(tokens.device), tokens.shape[1])
        words: Tensor = self.network.text_encoder.embeddings(input_ids=tokens)
        return words.masked_fill(~present[..., None], 0)

    def embed_images(self, images: Tensor) -> Tensor:
        return unit(self.network.vision_proj(self.parts_of_images(images)[:, 0]))

    def embed_texts(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        mask = length_mask(lengths.to(tokens.device), tokens.shape[1])
        output = self.network.text_encoder(input_ids=tokens, attention_mask=mask.long())
        return unit(self.network.text_proj(output.last_hidden_state[:, 0]))

    def score_pairs(self, images: Tensor, texts: Tensor, lengths: Tensor) -> Tensor:
        mask = length_mask(lengths.to(texts.device), texts.shape[1])
        everywhere = torch.ones(images.shape[:2], dtype=torch.long, device=images.device)
        output = self.network.text_encoder(
            encoder_embeds=texts,
            attention_mask=mask.long(),
            encoder_hidden_states=images,
            encoder_attention_mask=everywhere,
        )
        both: Tensor = self.network.itm_head(output.last_hidden_state[:, 0])
        both = both if both.dtype == torch.float64 else both.float()
        return both[:, 1] - both[:, 0]


def is_blip(folder: Path) -> bool:
    """Whether the folder holds a BLIP saved by transformers."""
    file = folder / "config.json"
    return file.is_file() and json.loads(file.read_text()).get("model_type") == "blip"


def _load(folder: str | Path) -> Any:
    from transformers import BlipForImageTextRetrieval

    place = place_of(folder)
    refuse_pickles(place)
    with quietly(), one_sentence(folder):
        network, report = BlipForImageTextRetrieval.from_pretrained(
            place, use_safetensors=True, dtype=torch.float32, output_loading_info=True
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise ValueError(
            f"{folder} is a BLIP, but not one for retrieval: it lacks {', '.join(missing)}"
        )
    return network
