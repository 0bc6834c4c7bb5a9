"""Tokenizer of a transformers text network: captions to padded tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradspace.models.hub import download_options
from gradspace.models.pretrained import one_sentence, place_of, quietly

if TYPE_CHECKING:
    from gradspace.data.captions import Span

LONGEST = 512
VOCABULARIES = ("tokenizer.json", "vocab*", "*.model")
"""Files that may hold the words of a tokenizer."""


class Tokenizer:
    """Encodes captions as tokens with the network's start and end marks; safe in data workers.

    Args:
        longest: number of tokens that the network can read.
        fixed: pad every caption to that length with tokens that count, as SigLIP does.
    """

    def __init__(self, name: str | Path, *, longest: int = LONGEST, fixed: bool = False) -> None:
        from transformers import AutoTokenizer

        place = place_of(name)
        _check_vocabulary(Path(place))
        with quietly(), one_sentence(name):
            self._tokenizer = AutoTokenizer.from_pretrained(place, **download_options(place))
        self._options: dict[str, Any] = {
            "truncation": True,
            "max_length": min(self._tokenizer.model_max_length, longest),
            "padding": "max_length" if fixed else False,
        }

    def encode(self, captions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Encode captions as int64 tokens [m, words], padded with 0 or cut, and lengths [m]."""
        encoded = self._tokenizer(list(captions), **self._options)["input_ids"]
        lengths = torch.tensor([len(tokens) for tokens in encoded])
        tokens = torch.zeros(len(encoded), int(lengths.max()), dtype=torch.long)
        for row, values in zip(tokens, encoded, strict=True):
            row[: len(values)] = torch.tensor(values)
        return tokens, lengths

    @property
    def mask(self) -> int | None:
        """Token of a masked word, or else that of an unknown one."""
        found: int | None = self._tokenizer.mask_token_id
        unknown: int | None = self._tokenizer.unk_token_id
        return unknown if found is None else found

    @property
    def pieces(self) -> tuple[int, ...]:
        """Tokens that continue the word before them, as marked by BERT's tokenizer."""
        known: dict[str, int] = self._tokenizer.get_vocab()
        return tuple(sorted(token for word, token in known.items() if word.startswith("##")))

    def spans(self, caption: str) -> list[Span | None]:
        """Locate the word of every token in the caption; None for marks and padding.

        Words are those of the tokenizer, split at spaces. Tokenizers that do not track offsets (not
        "fast") give None for all.
        """
        if not self._tokenizer.is_fast:
            return [None] * len(self._tokenizer(caption, **self._options)["input_ids"])
        encoded = self._tokenizer(caption, return_offsets_mapping=True, **self._options)
        words: dict[tuple[int, int], Span] = {}
        keys: list[tuple[int, int] | None] = []
        for word, offsets in zip(encoded.word_ids(), encoded["offset_mapping"], strict=True):
            start, end = _without_spaces(caption, *offsets)
            key = None if word is None or start >= end else (word, len(caption[:end].split()))
            keys.append(key)
            if key is not None:
                words[key] = words.get(key, (start, end))[0], end
        return [words[key] if key else None for key in keys]

    def unknown_words(self, caption: str) -> list[str]:
        """List the words that the network reads as unknown, each once; pieces make them rare."""
        mark = self._tokenizer.unk_token_id
        tokens = self._tokenizer(caption, **self._options)["input_ids"]
        if mark not in tokens:
            return []
        pairs = zip(tokens, self.spans(caption), strict=True)
        unknown = [caption[slice(*span)] for token, span in pairs if span and token == mark]
        return list(dict.fromkeys(unknown))

    def save(self, folder: Path) -> None:
        """Save the files that `Tokenizer(folder)` reads."""
        self._tokenizer.save_pretrained(folder)


def _without_spaces(caption: str, start: int, end: int) -> Span:
    """Strip spaces from a span: many tokenizers make them part of a word, or tokens."""
    piece = caption[start:end]
    return end - len(piece.lstrip()), start + len(piece.rstrip())


def _check_vocabulary(folder: Path) -> None:
    """Reject a folder without a tokenizer, for which transformers would make an empty one."""
    if folder.is_dir() and not any(any(folder.glob(pattern)) for pattern in VOCABULARIES):
        raise ValueError(f"{folder} has no tokenizer: expected {' or '.join(VOCABULARIES)} in it")
