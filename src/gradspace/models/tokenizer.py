"""The tokenizer of a transformers text network: captions to padded tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from gradspace.models.pretrained import one_sentence, place_of, quietly

LONGEST = 512


class Tokenizer:
    """Captions to tokens, with the network's own marks of start and end; safe in data workers."""

    def __init__(self, name: str | Path) -> None:
        from transformers import AutoTokenizer

        place = place_of(name)
        with quietly(), one_sentence(name):
            self._tokenizer = AutoTokenizer.from_pretrained(place)

    def encode(self, captions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """int64 tokens [m, words] padded with 0, and lengths [m]. Long captions are cut."""
        longest = min(self._tokenizer.model_max_length, LONGEST)
        encoded = self._tokenizer(list(captions), truncation=True, max_length=longest)["input_ids"]
        lengths = torch.tensor([len(tokens) for tokens in encoded])
        tokens = torch.zeros(len(encoded), int(lengths.max()), dtype=torch.long)
        for row, values in zip(tokens, encoded, strict=True):
            row[: len(values)] = torch.tensor(values)
        return tokens, lengths

    def save(self, folder: Path) -> None:
        """Write the files that `Tokenizer(folder)` reads."""
        self._tokenizer.save_pretrained(folder)
