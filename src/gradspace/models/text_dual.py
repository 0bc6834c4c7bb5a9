"""A dual encoder of text: questions and passages, instead of captions and images."""

from __future__ import annotations

from torch import Tensor

from gradspace.models.contract import RetrievalModel, unit
from gradspace.models.encoders import TextEncoders
from gradspace.models.inputs import ImageInput, TextInput
from gradspace.models.pooling import length_mask, masked_max, masked_mean
from gradspace.models.registry import model
from gradspace.models.text import GRUEncoder, TransformerEncoder
from gradspace.parameters import Flag


@model(
    "text-dual",
    source="after Karpukhin et al. 2020",
    training={
        "batch_size": 64,
        "epochs": 12,
        "optimizer": "adam",
        "learning_rate": 1e-3,
        "decay_epochs": [9],
        "decay": 0.1,
        "clip": 2.0,
    },
    warm_up="triplet",
)
class TextDual(RetrievalModel):
    """Passages in place of images: both sides read text, with a shared encoder or one each.

    A text is the maximum of a bi-directional GRU's states over its words, or the mean of a
    transformers text encoder's states over its tokens. Dense passage retrieval has two BERTs, which
    is `shared=false` here; the schedule is this project's.
    """

    reads_passages = True

    def __init__(
        self,
        image_input: ImageInput,
        text_input: TextInput,
        *,
        shared: Flag = True,
        encoders: TextEncoders = TextEncoders(width=256, word_width=128),
    ) -> None:
        super().__init__()
        self.width = encoders.width
        self.texts = encoders.texts(text_input, bidirectional=True)
        self.passages = None if shared else encoders.texts(text_input, bidirectional=True)

    def embed_images(self, images: Tensor) -> Tensor:
        """Embed passages, given as their length followed by tokens, as [n, width]."""
        encoder = self.texts if self.passages is None else self.passages
        return _embed(encoder, tokens=images[:, 1:], lengths=images[:, 0])

    def embed_texts(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        return _embed(self.texts, tokens, lengths)


def _embed(encoder: GRUEncoder | TransformerEncoder, tokens: Tensor, lengths: Tensor) -> Tensor:
    pool = masked_max if isinstance(encoder, GRUEncoder) else masked_mean
    mask = length_mask(lengths.to(tokens.device), tokens.shape[1])
    return unit(pool(encoder(tokens, lengths), mask))
