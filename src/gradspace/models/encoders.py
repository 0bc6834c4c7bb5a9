"""How a model encodes images and words: the parameters that models share, and what they build."""

from __future__ import annotations

from dataclasses import dataclass

from gradspace.models.backbones import Backbone
from gradspace.models.inputs import ImageInput, PrecomputedFeatures, TextInput
from gradspace.models.registry import Count, Share
from gradspace.models.text import GRUEncoder, TransformerEncoder
from gradspace.parameters import Flag, Positive


@dataclass(frozen=True, kw_only=True)
class TextEncoders:
    """Parameters of a model that reads texts only."""

    width: Count = 1024
    """Of the embeddings."""
    word_width: Count = 300
    """Of a GRU's word embeddings."""
    dropout: Share = 0.0
    """Of a GRU's word embeddings."""
    text_rate: Positive = 0.1
    """Of the learning rate, for a transformers text encoder."""

    def texts(
        self, given: TextInput, *, bidirectional: bool = False
    ) -> GRUEncoder | TransformerEncoder:
        """The encoder of a text input, [m, words, width]; `bidirectional` is for a GRU."""
        if given.vocabulary_size is None:
            return TransformerEncoder(given, self.width, rate=self.text_rate)
        return GRUEncoder(
            given.vocabulary_size,
            self.width,
            word_width=self.word_width,
            bidirectional=bidirectional,
            dropout=self.dropout,
        )


@dataclass(frozen=True, kw_only=True)
class Encoders(TextEncoders):
    """Parameters of a model that reads images and texts.

    A model takes them as one argument, whose default says where it differs from these; in a recipe
    each is a key of the model.
    """

    backbone_rate: Positive = 0.01
    """Of the learning rate, for an image backbone."""
    freeze_batch_norm: Flag = True
    """Keep the backbone's BatchNorm statistics when it is fine-tuned too, as VSE-infinity does."""

    def images(
        self, given: ImageInput, owner: str, *, regions: bool
    ) -> PrecomputedFeatures | Backbone:
        """What turns images into features, [n, regions, width] where the owner needs regions."""
        if given.shape is not None:
            if regions and len(given.shape) == 1:
                raise ValueError(
                    f"{owner} needs regions or a grid, features of shape (regions, width); "
                    f"these are one vector per image, of shape {given.shape}"
                )
            return PrecomputedFeatures(given.shape)
        assert given.backbone is not None
        return Backbone(
            given.backbone,
            grid=regions,
            fine_tune=given.fine_tune,
            freeze_batch_norm=self.freeze_batch_norm,
            rate=self.backbone_rate,
            pretrained=given.pretrained,
        )
