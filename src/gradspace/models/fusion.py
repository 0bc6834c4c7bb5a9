"""Fusion (ALBEF, X-VLM): two encoders that embed, and layers that read a pair jointly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradspace.models.contract import LearnedScale, Reranker, unit, xavier_linear
from gradspace.models.encoders import Encoders
from gradspace.models.fusion_layers import FusionLayers, small_config
from gradspace.models.inputs import ImageInput, TextInput
from gradspace.models.matching import draw_pairs, matching_loss
from gradspace.models.pooling import length_mask
from gradspace.models.registry import Count, model
from gradspace.models.text import GRUEncoder, TextNetwork
from gradspace.models.xvlm import load_published
from gradspace.parameters import Flag, NonNegative, Positive

SMALL_LAYERS = 2
"""Number of layers of a fusion over a GRU."""
TEMPERATURES = (0.001, 0.5)
"""Limits of a learned temperature, as published."""


@model(
    "fusion",
    source="Zeng et al. 2022",
    training={
        "batch_size": 128,
        "epochs": 10,
        "optimizer": "adamw",
        "learning_rate": 3e-5,
        "weight_decay": 0.01,
        "decay_epochs": [],
    },
)
class Fusion(Reranker):
    """An image and a text encoder with embeddings, and cross-attention that scores pairs.

    An image is its regions, or a backbone's grid, preceded by their mean: the mean is embedded, and
    all of them are attended to. BERT's lower layers read the text, its class token is embedded, and
    its upper layers (`num_fusion_layers`, by default half of all) become the fusion, with
    cross-attention to the image. Without a text encoder a GRU reads the words, its last state is
    embedded, and two new layers are the fusion. The fusion's first word decides whether the pair
    belongs together: the score is the log of the odds, and `extra_loss` is `itm_weight` times their
    loss, on pairs sampled by the embeddings' scores divided by `temperature`.

    The recipe's objective is the contrastive loss of the papers (ITC). There is no momentum
    encoder; `objective.memory` adds past embeddings as further negatives. The published code learns
    its temperature (`learn_temperature`, with nt-xent), doubles the learning rate of a new head on
    pairs (`head_rate`), and adds 1e-5 to the sampling probabilities. In re-ranking it uses only the
    second of a pair's two scores; here it is the second minus the first, and the embeddings' score
    is added (`proposal_weight`).

    `weights` is a safetensors file of published X-VLM weights, see `gradspace.models.xvlm`.
    """

    temperature: Tensor

    def __init__(
        self,
        image_input: ImageInput,
        text_input: TextInput,
        *,
        num_fusion_layers: Count | None = None,
        itm_weight: NonNegative = 1.0,
        temperature: Positive = 0.07,
        learn_temperature: Flag = False,
        head_rate: Positive = 1.0,
        weights: str | None = None,
        encoders: Encoders = Encoders(width=256, backbone_rate=1.0, text_rate=1.0),
    ) -> None:
        super().__init__()
        width = self.width = encoders.width
        self.itm_weight = itm_weight
        self.learn_temperature, self.head_rate = learn_temperature, head_rate
        if learn_temperature:
            self.temperature = nn.Parameter(torch.tensor(temperature))
        else:
            self.register_buffer("temperature", torch.tensor(temperature))
        self.images = encoders.images(image_input, self.name, regions=True)
        if text_input.encoder is None:
            self.texts, self.fusion = _over_words(
                text_input, self.images.width, encoders, num_fusion_layers
            )
        else:
            self.texts, self.fusion = _over_bert(
                text_input, self.images.width, encoders.text_rate, num_fusion_layers
            )
        self.image_projection = xavier_linear(self.images.width, width)
        self.text_projection = xavier_linear(self.fusion.width, width)
        self.matching_head = _head(self.fusion.width)
        self._matching_loss: Tensor | None = None
        if weights is not None:
            self._take(Path(weights), image_input, text_input)

    def _take(self, weights: Path, image_input: ImageInput, text_input: TextInput) -> None:
        """Load published weights, unless a checkpoint will provide others."""
        if image_input.backbone is None or text_input.encoder is None:
            raise ValueError(
                "weights needs a Swin as model.backbone and a BERT as model.text_encoder"
            )
        if text_input.pretrained:
            load_published(self, weights)

    # --- each side ------------------------------------------------------------------------------

    def parts_of_images(self, images: Tensor) -> Tensor:
        """Compute the regions, preceded by their mean."""
        regions = self.images(images)
        return torch.cat([regions.mean(1, keepdim=True), regions], 1)

    def parts_of_texts(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        present = length_mask(lengths.to(tokens.device), tokens.shape[1])
        states: Tensor = self.texts(tokens, lengths)
        return states.masked_fill(~present[..., None], 0)

    def embed_images(self, images: Tensor) -> Tensor:
        return self._embed_parts_of_images(self.parts_of_images(images))

    def embed_texts(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        return self._embed_parts_of_texts(self.parts_of_texts(tokens, lengths), lengths)

    def _embed_parts_of_images(self, regions: Tensor) -> Tensor:
        return unit(self.image_projection(regions[:, 0]))

    def _embed_parts_of_texts(self, words: Tensor, lengths: Tensor) -> Tensor:
        """Embed BERT's class token, or a GRU's state after the last word."""
        if isinstance(self.texts, TextNetwork):
            return unit(self.text_projection(words[:, 0]))
        rows = torch.arange(len(words), device=words.device)
        return unit(self.text_projection(words[rows, lengths.to(words.device) - 1]))

    # --- pairs ----------------------------------------------------------------------------------

    def score_pairs(self, images: Tensor, texts: Tensor, lengths: Tensor) -> Tensor:
        """Score pairs, [p], by log(P(matched) / P(not matched))."""
        present = length_mask(lengths.to(texts.device), texts.shape[1])
        both: Tensor = self.matching_head(self.fusion(texts, present, images)[:, 0])
        both = both if both.dtype == torch.float64 else both.float()
        return both[:, 1] - both[:, 0]

    def forward(
        self,
        images: Tensor,
        tokens: Tensor,
        lengths: Tensor,
        image_of_text: Tensor | None = None,
        image_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        regions, words = self.parts_of_images(images), self.parts_of_texts(tokens, lengths)
        found = self._embed_parts_of_images(regions), self._embed_parts_of_texts(words, lengths)
        self._matching_loss = None
        if self.training and self.itm_weight and torch.is_grad_enabled():
            if image_of_text is None:
                image_of_text = _by_position(len(regions), len(words), words.device)
            if image_ids is None:
                image_ids = torch.arange(len(regions), device=words.device)
            scores = (found[0] @ found[1].t()).detach()
            pairs = draw_pairs(scores, image_of_text, image_ids, self._temperature())
            of_texts = lengths.to(words.device)[pairs.texts]
            logits = self.score_pairs(regions[pairs.images], words[pairs.texts], of_texts)
            self._matching_loss = self.itm_weight * matching_loss(logits, pairs)
        return found

    @property
    def proposal_weight(self) -> float:
        """Weight of the embeddings' score in re-ranking, 1 / temperature.

        Negatives are drawn from q(text | image), proportional to p(text) exp(score / temperature),
        so the best the fusion can learn is log(p(text | image) / q(text | image)). The quantity to
        order texts by, log(p(text | image) / p(text)), is therefore the fusion's score plus
        score / temperature, up to a constant per image. While the fusion has learned nothing, the
        embeddings' order is kept.
        """
        return 1 / float(self._temperature())

    def learned_scale(self) -> LearnedScale | None:
        if not self.learn_temperature:
            return None
        beyond = (self.temperature.clamp(*TEMPERATURES) - self.temperature).detach()
        return LearnedScale(1 / (self.temperature + beyond))  # clamped, but still with a gradient

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Give the head on pairs its own learning rate, and the temperature no weight decay."""
        own: dict[str, list[nn.Parameter]] = {}
        if self.head_rate != 1:
            own["head"] = list(self.matching_head.parameters())
        if isinstance(self.temperature, nn.Parameter):
            own["temperature"] = [self.temperature]
        apart = {parameter for parameters in own.values() for parameter in parameters}
        groups = super().parameter_groups(learning_rate)
        for group in groups:
            group["params"] = [each for each in group["params"] if each not in apart]
        more = {
            "head": {"lr": self.head_rate * learning_rate},
            "temperature": {"lr": learning_rate, "weight_decay": 0.0},
        }
        return groups + [{"name": n, "params": params, **more[n]} for n, params in own.items()]

    def _temperature(self) -> Tensor:
        return (
            self.temperature.detach().clamp(*TEMPERATURES)
            if self.learn_temperature
            else self.temperature
        )

    def extra_loss(self) -> Tensor | None:
        loss, self._matching_loss = self._matching_loss, None
        return loss


TextSide = tuple[GRUEncoder | TextNetwork, FusionLayers]


def _over_words(
    given: TextInput, image_width: int, encoders: Encoders, num_layers: int | None
) -> TextSide:
    """Build a GRU, and new fusion layers over its states."""
    assert given.vocabulary_size is not None
    width, dropout = encoders.width, encoders.dropout
    texts = GRUEncoder(
        given.vocabulary_size, width, word_width=encoders.word_width, dropout=dropout
    )
    config = small_config(width, dropout)
    return texts, FusionLayers(config, image_width, num_layers or SMALL_LAYERS)


def _over_bert(given: TextInput, image_width: int, rate: float, num_layers: int | None) -> TextSide:
    """Load a BERT and move its upper layers to the fusion; its configuration still counts them."""
    assert given.encoder is not None
    texts = TextNetwork(given.encoder, rate=rate, pretrained=given.pretrained)
    network = texts.network
    if network.config.model_type != "bert":
        raise ValueError(
            f"fusion takes its layers from a BERT, but the text encoder is a "
            f"{type(network).__name__}: use a BERT as model.text_encoder"
        )
    layers = network.encoder.layer
    num_layers = num_layers or len(layers) // 2
    if not 0 < num_layers < len(layers):
        raise ValueError(
            f"num_fusion_layers is {num_layers}, but the text encoder has {len(layers)} layers: "
            "leave at least one for the text alone, and use at least one for the fusion"
        )
    fusion = FusionLayers(network.config, image_width, num_layers)
    fusion.take_over(layers[-num_layers:])
    network.encoder.layer = layers[:-num_layers]
    texts.fine_tune(given.fine_tune)
    return texts, fusion


def _head(width: int) -> nn.Sequential:
    """Build the head to two scores: not matched, and matched."""
    hidden = 2 * width
    return nn.Sequential(
        nn.Linear(width, hidden), nn.LayerNorm(hidden), nn.GELU(), nn.Linear(hidden, 2)
    )


def _by_position(num_images: int, num_texts: int, device: torch.device) -> Tensor:
    if num_images != num_texts:
        raise ValueError(
            f"{num_texts} texts for {num_images} images: fusion needs image_of_text to know which "
            "image a text describes"
        )
    return torch.arange(num_texts, device=device)
