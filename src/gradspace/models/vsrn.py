"""VSRN: graph convolutions relate the regions of an image, and a GRU reads them one by one."""

from __future__ import annotations

from torch import Tensor, nn

from gradspace.models.captioning import CaptionDecoder
from gradspace.models.contract import RetrievalModel, unit, xavier_linear
from gradspace.models.encoders import Encoders
from gradspace.models.gcn import GCNBlock
from gradspace.models.inputs import ImageInput, TextInput
from gradspace.models.registry import STEP_DECAY, Count, Share, model
from gradspace.parameters import Flag


@model(
    "vsrn",
    source="Li et al. 2019",
    training={**STEP_DECAY, "epochs": 30, "optimizer": "adam", "learning_rate": 2e-4},
)
class VSRN(RetrievalModel):
    """Regions related by graph convolutions and read by a GRU; a GRU over the words.

    A fully connected layer is applied to every region, then four residual graph convolutions, then
    a GRU that reads the regions in order: its last state is the image. Texts are as in VSE++.
    `caption_decoder` adds the published `extra_loss`, with weight 1; it is off, as in ICR.

    Before the GRU every channel is divided by its length over the regions of its image, as in the
    published code, though the paper does not mention it. The code has two versions. For Flickr30k,
    the default here, a BatchNorm follows the GRU (`batch_norm`). For MS-COCO there is none, and the
    regions are also normalised in this way before the convolutions (`first_norm`). ICR has both for
    MS-COCO. Without the BatchNorm all images start out alike, and the hardest negative alone may
    not separate them.

    The published regions are ordered by a detector's confidence, which grids do not have:
    `longest_last` sorts the regions of each image by the length of their features, so that the GRU
    reads the strongest ones last.

    VSRN was published for precomputed regions; the settings for a backbone are VSE-infinity's.
    """

    def __init__(
        self,
        image_input: ImageInput,
        text_input: TextInput,
        *,
        num_blocks: Count = 4,
        first_norm: Flag = False,
        batch_norm: Flag = True,
        longest_last: Flag = False,
        caption_decoder: Flag = False,
        caption_dropout: Share = 0.2,
        encoders: Encoders = Encoders(width=2048),
    ) -> None:
        super().__init__()
        width = self.width = encoders.width
        self.images = encoders.images(image_input, self.name, regions=True)
        self.project = xavier_linear(self.images.width, width)
        self.first_norm = first_norm
        self.longest_last = longest_last
        self.blocks = nn.Sequential(*(GCNBlock(width) for _ in range(num_blocks)))
        self.reader = nn.GRU(width, width, batch_first=True)
        self.norm = _ImageNorm(width) if batch_norm else None
        self.texts = encoders.texts(text_input)
        self.decoder = (
            CaptionDecoder(width, self.texts.vocabulary_size, dropout=caption_dropout)
            if caption_decoder
            else None
        )
        self._caption_loss: Tensor | None = None

    def embed_images(self, images: Tensor) -> Tensor:
        return self._read(self._reason(images))

    def embed_texts(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        return unit(self.texts.sentence(tokens, lengths))

    def forward(
        self,
        images: Tensor,
        tokens: Tensor,
        lengths: Tensor,
        image_of_text: Tensor | None = None,
        image_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        regions = self._reason(images)
        self._caption_loss = None
        if self.decoder is not None and self.training:
            described = _of_texts(regions, len(tokens), image_of_text)
            self._caption_loss = self.decoder(described, tokens, lengths)
        return self._read(regions), self.embed_texts(tokens, lengths)

    def extra_loss(self) -> Tensor | None:
        loss, self._caption_loss = self._caption_loss, None
        return loss

    def _reason(self, images: Tensor) -> Tensor:
        """Compute regions related to each other, [n, regions, width]."""
        features = self.images(images)
        regions = self.project(_longest_last(features) if self.longest_last else features)
        if self.first_norm:
            regions = _unit_channels(regions)
        return _unit_channels(self.blocks(regions))

    def _read(self, regions: Tensor) -> Tensor:
        image: Tensor = self.reader(regions)[1][0]
        return unit(image if self.norm is None else self.norm(image))


class _ImageNorm(nn.BatchNorm1d):
    """BatchNorm that normalises a single image, which has no statistics, by running ones."""

    def forward(self, images: Tensor) -> Tensor:
        if len(images) > 1:
            return super().forward(images)
        return nn.functional.batch_norm(
            images, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )


def _longest_last(features: Tensor) -> Tensor:
    """Sort the regions of every image by length."""
    order = features.norm(dim=2).argsort(dim=1, stable=True)
    return features.take_along_dim(order.unsqueeze(2), dim=1)


def _unit_channels(regions: Tensor) -> Tensor:
    """Scale every channel to length 1 over the regions of an image."""
    return unit(regions.transpose(1, 2)).transpose(1, 2)


def _of_texts(regions: Tensor, num_texts: int, image_of_text: Tensor | None) -> Tensor:
    """Select the regions of the image that each text describes."""
    if image_of_text is not None:
        return regions[image_of_text]
    if len(regions) != num_texts:
        raise ValueError(
            f"{num_texts} texts for {len(regions)} images: "
            "the caption decoder needs image_of_text to know which image a text describes"
        )
    return regions
