"""A caption decoder, which makes an image encoder keep what a caption needs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gradspace.models.packing import packing


class CaptionDecoder(nn.Module):
    """Log-likelihood of the captions given the regions: a GRU language model with attention.

    VSRN's text generation loss (Li et al. 2019, eq. 7): -log p(word_t | words before, regions),
    summed over the words and averaged over the captions. Attention comes after the GRU (Luong et
    al. 2015), so that all words are computed at once: the published one feeds it back word by word.
    """

    def __init__(
        self, region_width: int, vocabulary_size: int, *, word_width: int = 300, width: int = 512
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, word_width)
        self.regions = nn.Linear(region_width, width)
        self.gru = nn.GRU(word_width, width, batch_first=True)
        self.join = nn.Linear(2 * width, width)
        self.out = nn.Linear(width, vocabulary_size)

    def forward(self, regions: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
        """The loss, from [m, regions, width], tokens [m, words] and lengths [m]."""
        keys = self.regions(regions)
        start = keys.mean(1).tanh().to(self.gru.weight_hh_l0.dtype)[None]
        states, _ = self.gru(self.embedding(tokens[:, :-1]), start)
        attention = (states.to(keys.dtype) @ keys.transpose(1, 2)).softmax(2).to(keys.dtype)
        seen = torch.cat([states, attention @ keys], dim=2)
        words = packing(lengths - 1, tokens.shape[1] - 1, tokens.device).index
        scores = self.out(self.join(seen.flatten(0, 1)[words]).tanh())
        target = tokens[:, 1:].flatten()[words]
        total = nn.functional.cross_entropy(scores, target, reduction="sum")
        return total / len(tokens)
