"""The tokenizer of a transformers text network: captions to padded tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradspace.models.pretrained import one_sentence, place_of, quietly

LONGEST = 512
VOCABULARIES = ("tokenizer.json", "vocab*", "*.model")
"""Files that the words of a tokenizer are in."""


class Tokenizer:
    """Captions to tokens, with the network's own marks of start and end; safe in data workers.

    Args:
        longest: tokens that the network can read.
        fixed: pad every caption to the longest there is, with tokens that count, as SigLIP does.
    """

    def __init__(self, name: str | Path, *, longest: int = LONGEST, fixed: bool = False) -> None:
        from transformers import AutoTokenizer

        place = place_of(name)
        _check_vocabulary(Path(place))
        with quietly(), one_sentence(name):
            self._tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
        self._options: dict[str, Any] = {
            "truncation": True,
            "max_length": min(self._tokenizer.model_max_length, longest),
            "padding": "max_length" if fixed else False,
        }

    def encode(self, captions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """int64 tokens [m, words] padded with 0, and lengths [m]. Long captions are cut."""
        encoded = self._tokenizer(list(captions), **self._options)["input_ids"]
        lengths = torch.tensor([len(tokens) for tokens in encoded])
        tokens = torch.zeros(len(encoded), int(lengths.max()), dtype=torch.long)
        for row, values in zip(tokens, encoded, strict=True):
            row[: len(values)] = torch.tensor(values)
        return tokens, lengths

    def save(self, folder: Path) -> None:
        """Write the files that `Tokenizer(folder)` reads."""
        self._tokenizer.save_pretrained(folder)


def _check_vocabulary(folder: Path) -> None:
    """transformers makes an empty tokenizer where a folder has none."""
    if folder.is_dir() and not any(any(folder.glob(pattern)) for pattern in VOCABULARIES):
        raise ValueError(f"{folder} has no tokenizer: there is no {' or '.join(VOCABULARIES)}")
