"""Text encoders to [m, words, width]: a GRU over words, or a transformers text network."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from gradspace.models.inputs import TextInput
from gradspace.models.packing import Packing, packing
from gradspace.models.pooling import length_mask, masked_mean
from gradspace.models.pretrained import Pretrained


class GRUEncoder(nn.Module):
    """Word embeddings, initially uniform in (-0.1, 0.1), and a GRU whose directions are averaged.

    Captions need not be sorted by length.
    """

    def __init__(
        self,
        vocabulary_size: int,
        width: int,
        *,
        word_width: int = 300,
        bidirectional: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.vocabulary_size = vocabulary_size
        self.embedding = nn.Embedding(vocabulary_size, word_width)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.dropout = nn.Dropout(dropout)
        self.gru = nn.GRU(word_width, width, batch_first=True, bidirectional=bidirectional)

    @property
    def word_width(self) -> int:
        return self.embedding.embedding_dim

    @torch.no_grad()
    def set_words(self, tokens: Tensor, vectors: Tensor) -> None:
        """Overwrite the embeddings of some words by vectors [tokens, word_width]."""
        self.embedding.weight[tokens] = vectors.to(self.embedding.weight)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Compute the state at every word, [m, words, width]; 0 after the last."""
        packed, states, _ = self._run(tokens, lengths)
        return packed.pad(states.view(len(states), -1, self.gru.hidden_size).mean(1))

    def sentence(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Compute the state after the last word, [m, width]."""
        return self._run(tokens, lengths)[2].mean(0)

    def summands(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Return the sentence itself, which is not a sum over the words."""
        return self.sentence(tokens, lengths)

    def _run(self, tokens: Tensor, lengths: Tensor) -> tuple[Packing, Tensor, Tensor]:
        """Compute packed states at every word, and those after the last words, by direction."""
        packed = packing(lengths, tokens.shape[1], tokens.device)
        words = self.dropout(self.embedding(tokens.flatten()[packed.index]))
        states, last = self.gru(packed.pack(words))
        return packed, states.data, last


class TransformerEncoder(nn.Module):
    """A transformers text network, such as BERT, and a linear layer to `width`."""

    def __init__(self, given: TextInput, width: int, *, rate: float) -> None:
        super().__init__()
        assert given.encoder is not None
        self.pretrained = TextNetwork(given.encoder, rate=rate, pretrained=given.pretrained)
        self.pretrained.fine_tune(given.fine_tune)
        self.vocabulary_size = int(self.pretrained.network.config.vocab_size)
        self.linear = nn.Linear(int(self.pretrained.network.config.hidden_size), width)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Encode every token in its context, [m, words, width]."""
        words: Tensor = self.linear(self.pretrained(tokens, lengths))
        return words

    def sentence(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Average over the tokens, [m, width]."""
        mask = length_mask(lengths.to(tokens.device), tokens.shape[1])
        return masked_mean(self(tokens, lengths), mask)

    def summands(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Compute what every token adds to the sentence, [m, words, width]; 0 for padding."""
        mask = length_mask(lengths.to(tokens.device), tokens.shape[1])
        states: Tensor = self(tokens, lengths)
        return states * (mask / mask.sum(1, keepdim=True))[..., None]


class TextNetwork(Pretrained):
    """Last hidden states of a transformers text network, or of CLIP's text tower."""

    kind = "text_encoder"

    def __init__(self, name: str | Path, *, rate: float = 1.0, pretrained: bool = True) -> None:
        super().__init__(name, "text", rate=rate, pretrained=pretrained)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        mask = length_mask(lengths.to(tokens.device), tokens.shape[1])
        with torch.set_grad_enabled(self.fine_tuned and torch.is_grad_enabled()):
            output = self.network(input_ids=tokens, attention_mask=mask.long())
        hidden: Tensor = output.last_hidden_state
        return hidden

    def example(self) -> tuple[Tensor, ...]:
        return torch.zeros(1, 2, dtype=torch.long, device=self.network.device), torch.tensor([2])
