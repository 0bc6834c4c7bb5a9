"""Parameters that models share for encoding images and words, and the encoders they build."""

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
    """Width of the embeddings."""
    word_width: Count = 300
    """Width of a GRU's word embeddings."""
    dropout: Share = 0.0
    """Dropout of a GRU's word embeddings."""
    text_rate: Positive = 0.1
    """Learning rate of a transformers text encoder, relative to that of the model."""

    def texts(
        self, given: TextInput, *, bidirectional: bool = False
    ) -> GRUEncoder | TransformerEncoder:
        """Build the encoder of a text input to [m, words, width]; a GRU may be `bidirectional`."""
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

    A model takes them as one argument, whose default holds the model's own defaults; in a recipe
    each is a key of the model.
    """

    backbone_rate: Positive = 0.01
    """Learning rate of an image backbone, relative to that of the model."""
    freeze_batch_norm: Flag = True
    """Whether to keep the backbone's BatchNorm statistics in fine-tuning, as in VSE-infinity."""

    def images(
        self, given: ImageInput, owner: str, *, regions: bool
    ) -> PrecomputedFeatures | Backbone:
        """Build the module from images to features, [n, regions, width] if `regions` are needed."""
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
