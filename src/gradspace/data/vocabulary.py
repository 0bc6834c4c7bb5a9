"""Vocabulary of the training captions: words as numbers."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from gradspace.data.captions import Span
from gradspace.data.json_files import read_json
from gradspace.data.punctuation import TREEBANK
from gradspace.files import write_atomically

PAD, START, END, UNKNOWN = range(4)
SPECIAL = ("<pad>", "<start>", "<end>", "<unknown>")
MASK = "<mask>"
"""Last word in vocabularies of models that mask words in training."""
_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")


def words(caption: str, *, punctuation: bool = False) -> list[str]:
    """List the lower-cased runs of letters and digits; an apostrophe inside a word belongs to it.

    With `punctuation`, punctuation marks are words too, and words are split as in published code.

    >>> words("A man's T-shirt, size 42.")
    ['a', "man's", 't', 'shirt', 'size', '42']
    >>> words("A man's T-shirt, size 42.", punctuation=True)
    ['a', 'man', "'s", 't-shirt', ',', 'size', '42', '.']
    """
    return _pattern(punctuation).findall(caption.lower())


def _pattern(punctuation: bool) -> re.Pattern[str]:
    return TREEBANK if punctuation else _WORD


@dataclass(frozen=True)
class Vocabulary:
    """Words by number, the special ones first: 0 is padding.

    Examples:
        >>> vocabulary = Vocabulary.build(["A dog.", "a dog runs"], min_count=2)
        >>> vocabulary.encode("A dog sleeps!")
        [1, 4, 5, 3, 2]
    """

    words: tuple[str, ...]
    punctuation: bool = False
    """Whether punctuation marks are words too; see `words`."""

    def __post_init__(self) -> None:
        if self.words[: len(SPECIAL)] != SPECIAL:
            raise ValueError(f"a vocabulary begins with {', '.join(SPECIAL)}")
        if len(set(self.words)) < len(self.words):
            twice = next(word for word, count in Counter(self.words).items() if count > 1)
            raise ValueError(f"the word {twice!r} is in the vocabulary twice")

    @classmethod
    def build(
        cls,
        captions: Iterable[str],
        min_count: int = 4,
        *,
        punctuation: bool = False,
        mask: bool = False,
    ) -> Vocabulary:
        """Make a vocabulary of words seen `min_count` times or more, the most frequent first."""
        found = (words(caption, punctuation=punctuation) for caption in captions)
        counts = Counter(word for caption in found for word in caption)
        kept = [word for word, count in counts.items() if count >= min_count]
        ordered = sorted(kept, key=lambda word: (-counts[word], word))
        return cls((*SPECIAL, *ordered, *([MASK] if mask else [])), punctuation)

    def __len__(self) -> int:
        return len(self.words)

    @property
    def numbers(self) -> dict[str, int]:
        """Numbers of the words themselves, without the special ones."""
        own = enumerate(self.words[len(SPECIAL) :], start=len(SPECIAL))
        return {word: number for number, word in own if word != MASK}

    @property
    def mask(self) -> int:
        """Number of a masked word; that of unknown words if the vocabulary has no mask."""
        return self._number.get(MASK, UNKNOWN)

    def encode(self, caption: str) -> list[int]:
        """Convert a caption to numbers, between those of start and end."""
        found = words(caption, punctuation=self.punctuation)
        return [START, *(self._number.get(word, UNKNOWN) for word in found), END]

    def unknown_words(self, caption: str) -> list[str]:
        """List the words of a caption that are not in the vocabulary, each once."""
        return [word for word in dict.fromkeys(words(caption)) if word not in self._number]

    def spans(self, caption: str) -> list[Span | None]:
        """Locate the word of every token in the caption; None for start and end.

        Lower-casing can make a caption longer: "\u0130" becomes two characters.
        """
        origin = [place for place, character in enumerate(caption) for _ in character.lower()]
        found = _pattern(self.punctuation).finditer(caption.lower())
        return [None, *((origin[m.start()], origin[m.end() - 1] + 1) for m in found), None]

    def encode_batch(self, captions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return tokens, int64 [captions, longest], 0 as padding, and lengths, int64 [captions]."""
        rows = [self.encode(caption) for caption in captions]
        lengths = [len(row) for row in rows]
        longest = max(lengths, default=0)
        padded = [row + [PAD] * (longest - len(row)) for row in rows]
        return torch.tensor(padded, dtype=torch.int64), torch.tensor(lengths, dtype=torch.int64)

    def save(self, path: Path) -> None:
        with write_atomically(path) as file:
            saved = {"words": self.words, "punctuation": self.punctuation}
            json.dump(saved, file, ensure_ascii=False)

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        return read_json(path, cls, "a vocabulary")

    @cached_property
    def _number(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}
