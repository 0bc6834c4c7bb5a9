"""Caption decoder, which makes an image encoder retain what a caption needs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, pad

from gradspace.models.packing import packing


class CaptionDecoder(nn.Module):
    """Negative log-likelihood of captions given the regions: encoder and decoder with attention.

    VSRN's text generation loss (Li et al. 2019, eq. 7): -log p(word_t | words before, regions),
    summed over the words, which include one padding after the last as in the published code, and
    averaged over the captions. A GRU reads the regions; another starts from its last state and
    attends to all of its states before every word (Venugopalan et al. 2015, Bahdanau et al. 2015).
    """

    def __init__(
        self,
        region_width: int,
        vocabulary_size: int,
        *,
        word_width: int = 300,
        width: int = 512,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.width = width
        self.regions = nn.Linear(region_width, width)
        self.reader = nn.GRU(width, width, batch_first=True)
        self.embedding = nn.Embedding(vocabulary_size, word_width)
        self.attend = nn.Linear(2 * width, width)
        self.score = nn.Linear(width, 1, bias=False)
        self.writer = nn.GRUCell(word_width + width, width)
        self.out = nn.Linear(width, vocabulary_size)
        self.dropout = nn.Dropout(dropout)
        for layer in (self.regions, self.out):
            nn.init.xavier_normal_(layer.weight)

    def forward(self, regions: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Compute the loss from [m, regions, width], tokens [m, words] and lengths [m]."""
        tokens = tokens[:, : int(lengths.max())]
        keys, last = self.reader(self.dropout(self.regions(regions)))
        states = torch.stack(self._write(keys, last[0], self.dropout(self.embedding(tokens))), 1)
        counted = packing(lengths, tokens.shape[1], tokens.device).index
        scores = self.out(states.flatten(0, 1)[counted])
        target = pad(tokens, (0, 1))[:, 1:].flatten()[counted]
        return cross_entropy(scores, target, reduction="sum") / len(tokens)

    def _write(self, keys: Tensor, state: Tensor, words: Tensor) -> list[Tensor]:
        """Compute the states after every word, [m, width] each."""
        of_keys, of_state = torch.split(self.attend.weight, self.width, dim=1)
        attending = linear(keys, of_keys, self.attend.bias)  # once, for all words
        states = []
        for word in words.unbind(1):
            energy = self.score((attending + linear(state, of_state)[:, None]).tanh())
            context = (energy.softmax(1).to(keys.dtype) * keys).sum(1)
            joined = torch.cat([word.to(context.dtype), self.dropout(context)], dim=1)
            state = self.writer(joined, state)
            states.append(state)
        return states
