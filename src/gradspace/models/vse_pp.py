"""VSE++: a fully connected layer on a pooled image feature, and a GRU over the words."""

from __future__ import annotations

from torch import Tensor

from gradspace.models.contract import (
    Contributions,
    RetrievalModel,
    cosine_contributions,
    unit,
    xavier_linear,
)
from gradspace.models.encoders import Encoders
from gradspace.models.inputs import ImageInput, TextInput
from gradspace.models.registry import STEP_DECAY, model


@model(
    "vse++",
    source="Faghri et al. 2018",
    training={**STEP_DECAY, "epochs": 30, "optimizer": "adam", "learning_rate": 2e-4},
)
class VSEPlusPlus(RetrievalModel):
    """Pooled image features through one layer; the last state of a GRU over the words.

    image = unit(FC(unit(pooled feature))), text = unit(GRU's state after the last word). Several
    regions of an image are averaged. The published training fine-tunes in a second step, with all
    parts at one learning rate, including BatchNorm statistics.

    With a transformers text encoder (not published) the text is the mean over its tokens.
    """

    def __init__(
        self,
        image_input: ImageInput,
        text_input: TextInput,
        *,
        encoders: Encoders = Encoders(backbone_rate=1.0, freeze_batch_norm=False),
    ) -> None:
        super().__init__()
        self.width = encoders.width
        self.images = encoders.images(image_input, self.name, regions=False)
        self.project = xavier_linear(self.images.width, self.width)
        self.texts = encoders.texts(text_input)

    def embed_images(self, images: Tensor) -> Tensor:
        features = self.images(images)
        if features.dim() == 3:
            features = features.mean(1)
        return unit(self.project(unit(features)))

    def embed_texts(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        return unit(self.texts.sentence(tokens, lengths))

    def explain(self, images: Tensor, tokens: Tensor, lengths: Tensor) -> Contributions | None:
        """Decompose scores by regions, and by the tokens of a transformers text encoder."""
        return cosine_contributions(
            self._summands(self.images(images)), self.texts.summands(tokens, lengths)
        )

    def _summands(self, features: Tensor) -> Tensor:
        """Split FC(m / |m|), where m is the mean of the k regions x, into FC(x / |m|) / k."""
        if features.dim() == 2:
            return unit(self.project(unit(features)))
        length = features.mean(1, keepdim=True).norm(dim=2, keepdim=True).clamp(min=1e-12)
        summands: Tensor = self.project(features / length) / features.shape[1]
        return summands
