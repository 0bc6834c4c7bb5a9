"""Cross attention between regions and words, as SCAN and BFAN share it, in blocks of pairs.

Every part of a query (such as a word) attends to the parts of a context (such as an image's
regions), and is compared with the attended vector a:

    attention weights w_k of the parts c_k of the context, a = sum over k of w_k c_k
    relevance of part q = cos(q, a)

Parts are unit vectors, so no vector a is ever built: with the cosines s_k = q . c_k and the cosines
G of the context's parts among each other, q . a = sum of w_k s_k and |a|^2 = w G w. A block of
pairs takes one matrix product and some work on its similarities; no other step involves the width
of the parts.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gradspace.models.contract import Contributions, PairScorer, unit, xavier_linear
from gradspace.models.encoders import Encoders
from gradspace.models.inputs import ImageInput, TextInput
from gradspace.models.pooling import length_mask

Direction = Literal["text-to-image", "image-to-text"]
"""Direction of attention: from the words to the regions, or from the regions to the words."""

TILE_BYTES = {"cpu": 8 << 20, "cuda": 256 << 20}
"""Bytes of a tile's similarities; on a CPU they stay near its cache."""
IMAGES_AT_ONCE = 256
KEPT_BYTES = 2 << 30
"""Bytes of activations up to which they are kept for backward; beyond, tiles are recomputed."""
COPIES = 12
"""Copies of the similarities that are kept for backward, in each direction."""
SMALLEST = 1e-24
"""Squared length that replaces zero."""


class AttentionSide(NamedTuple):
    """Inputs of the attention from one side of pairs to the other."""

    direction: Direction
    similarities: Tensor
    """Cosines, [queries, parts, contexts, parts of a context]."""
    context: Tensor
    """Parts of the contexts."""
    attending: Tensor | None
    """Mask of the queries' parts that exist; None for all."""
    attended: Tensor | None
    """Mask of the contexts' parts that exist; None for all."""


class CrossAttention(PairScorer):
    """Regions through one layer, words through a bi-directional GRU whose directions are averaged.

    A model defines the `directions` it attends in, the attention `weights` of a part, how to `pool`
    the relevance of a query's parts, and how to `share_out` the pooled score. The scores of the
    directions are added.
    """

    directions: Sequence[Direction]

    def __init__(self, image_input: ImageInput, text_input: TextInput, encoders: Encoders) -> None:
        super().__init__()
        self.width = encoders.width
        self.images = encoders.images(image_input, self.name, regions=True)
        self.project = xavier_linear(self.images.width, self.width)
        self.texts = encoders.texts(text_input, bidirectional=True)

    @abstractmethod
    def weights(self, similarities: Tensor, present: Tensor | None) -> Tensor:
        """Compute weights [queries, parts, contexts, parts of a context], of sum 1 over the last.

        `present` [contexts, parts of a context] masks the parts that exist; None means all.
        """

    @abstractmethod
    def pool(self, relevance: Tensor, present: Tensor | None) -> Tensor:
        """Pool the relevance of every part, [queries, parts, contexts], to [queries, contexts].

        `present` masks the parts that exist, None meaning all; it broadcasts to the relevance.
        """

    @abstractmethod
    def share_out(self, cosines: Tensor, weights: Tensor, present: Tensor | None) -> Tensor:
        """Decompose the pooled score by parts of the query and parts of the context.

        `cosines` [queries, parts, contexts, parts of a context] add up to the relevance over the
        last dimension; the result, of the same shape, adds up to the score over both kinds of
        parts. `weights` are those of the attention; `present` is as in `pool`.
        """

    def parts_of_images(self, images: Tensor) -> Tensor:
        return unit(self.project(self.images(images)))

    def parts_of_texts(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        present = length_mask(lengths.to(tokens.device), tokens.shape[1])
        return unit(self.texts(tokens, lengths)).masked_fill(~present[..., None], 0)

    def score(self, images: Tensor, texts: Tensor, lengths: Tensor) -> Tensor:
        """Score every image with every text in tiles of captions of similar lengths.

        If the activations of all tiles together are too large to keep, backward recomputes them.
        """
        lengths = lengths.cpu()
        order = lengths.argsort(stable=True)
        height = min(len(images), IMAGES_AT_ONCE)
        per_word = height * images.shape[1] * images.element_size()
        tiles = _caption_tiles(order, lengths, TILE_BYTES[images.device.type] // per_word)
        everything = len(images) / height * per_word * int(lengths.sum()) * COPIES
        again = torch.is_grad_enabled() and everything * len(self.directions) > KEPT_BYTES
        place = order.argsort()
        with torch.autocast(images.device.type, enabled=False):
            rows = []
            for block in torch.split(images, height):
                among = _among(block)
                of_tile = partial(self._tile, block, among, texts, lengths, again=again)
                rows.append(torch.cat([of_tile(tile) for tile in tiles], 1))
        return torch.cat(rows)[:, place.to(images.device)]

    def score_pairs(self, images: Tensor, texts: Tensor, lengths: Tensor) -> Tensor:
        with torch.autocast(images.device.type, enabled=False):
            total = images.new_zeros(len(images))
            for side in self._sides(images, texts, lengths):
                relevance = self._relevance(side.similarities, _among(side.context), side.attended)
                total = total + self.pool(relevance, side.attending)[0]
            return total

    def explain(self, images: Tensor, tokens: Tensor, lengths: Tensor) -> Contributions:
        """Return the attention and the resulting contributions of both sides to the score.

        The relevance of a part is a sum over what it attends to, sum over k of w_k s_k / |a|. If
        both sides attend, the attention is that of the words.
        """
        regions, words = self(images, tokens, lengths)
        return self.explain_parts(regions, words, lengths)

    def explain_parts(self, images: Tensor, texts: Tensor, lengths: Tensor) -> Contributions:
        """Explain scores from the input of `score_pairs`; see `explain`."""
        shared = images.new_zeros(len(images), texts.shape[1], images.shape[1])
        attention = {}
        for side in self._sides(images, texts, lengths):
            weights = self.weights(side.similarities, side.attended)
            per_length = _per_length(weights, _among(side.context))
            cosines = weights * side.similarities * per_length[..., None]
            by_pair = self.share_out(cosines, weights, side.attending)
            by_word = (1, 0, 2) if side.direction == "text-to-image" else (1, 2, 0)
            shared = shared + by_pair[0].permute(by_word)
            attention[side.direction] = weights[0].permute(by_word)
        present = length_mask(lengths.to(texts.device), texts.shape[1])
        return Contributions(
            self.score_pairs(images, texts, lengths),
            words=shared.sum(2),
            regions=shared.sum(1),
            attention=attention[self.directions[0]].where(present[..., None], 0),
        )

    def _sides(self, images: Tensor, texts: Tensor, lengths: Tensor) -> Iterator[AttentionSide]:
        """Yield the attending sides of pairs by position, as one query with a context per pair."""
        present = length_mask(lengths.to(texts.device), texts.shape[1])
        similarities = texts @ images.transpose(1, 2)
        if "text-to-image" in self.directions:
            by_word = similarities.transpose(0, 1)[None]
            yield AttentionSide("text-to-image", by_word, images, present.t()[None], None)
        if "image-to-text" in self.directions:
            by_region = similarities.permute(2, 0, 1)[None]
            yield AttentionSide("image-to-text", by_region, texts, None, present)

    def _tile(
        self,
        images: Tensor,
        among: Tensor,
        texts: Tensor,
        lengths: Tensor,
        tile: Tensor,
        again: bool,
    ) -> Tensor:
        """Score all images with the texts of a tile, [images, texts of the tile]."""
        longest = int(lengths[tile].max())
        present = length_mask(lengths[tile].to(texts.device), longest)
        words = texts[tile.to(texts.device), :longest]
        if not again:
            return self._block(images, among, words, present)
        scores: Tensor = checkpoint(
            self._block,
            images,
            among,
            words,
            present,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        return scores

    def _block(self, images: Tensor, among: Tensor, texts: Tensor, present: Tensor) -> Tensor:
        """Score all pairs at once; the similarities are [texts, words, images, regions]."""
        shape = (*texts.shape[:2], *images.shape[:2])
        similarities = (texts.flatten(0, 1) @ images.flatten(0, 1).t()).view(shape)
        total = images.new_zeros(len(images), len(texts))
        if "text-to-image" in self.directions:
            by_word = self._relevance(similarities, among, None)
            total = total + self.pool(by_word, present[..., None]).t()
        if "image-to-text" in self.directions:
            turned = similarities.permute(2, 3, 0, 1).contiguous()
            total = total + self.pool(self._relevance(turned, _among(texts), present), None)
        return total

    def _relevance(self, similarities: Tensor, among: Tensor, present: Tensor | None) -> Tensor:
        """Cosines of parts and what they attend to, [queries, parts, contexts].

        `among` holds the cosines of the contexts' parts.
        """
        weights = self.weights(similarities, present)
        return (weights * similarities).sum(3) * _per_length(weights, among)


def clipped_attention(
    similarities: Tensor, present: Tensor | None, *, scale: float, leak: float
) -> Tensor:
    """Softmax of scale * s / |s| over the parts of a context, after damping negative s.

    Negative similarities are multiplied by `leak`; the length |s| is taken over the parts of the
    query, for every part of the context (SCAN eq. 2).
    """
    clipped = nn.functional.leaky_relu(similarities, leak)
    lengths = clipped.square().sum(1, keepdim=True).clamp(min=SMALLEST)
    logits = clipped * (scale * lengths.rsqrt())
    if present is not None:
        logits = logits.masked_fill(~present, -torch.inf)
    return logits.softmax(3)


def mean_relevance(relevance: Tensor, present: Tensor | None) -> Tensor:
    """Average over the existing parts, [queries, contexts]."""
    if present is None:
        return relevance.mean(1)
    return relevance.where(present, 0).sum(1) / present.sum(1)


def share_out_mean(cosines: Tensor, present: Tensor | None) -> Tensor:
    """Summands of `mean_relevance`."""
    if present is None:
        return cosines / cosines.shape[1]
    return cosines.where(present[..., None], 0) / present.sum(1, keepdim=True)[..., None]


def _per_length(weights: Tensor, among: Tensor) -> Tensor:
    """Inverse lengths 1 / |a| of the attended vectors, [queries, parts, contexts]."""
    by_context = weights.flatten(0, 1).transpose(0, 1)
    squares = ((by_context @ among) * by_context).sum(2).t().view(weights.shape[:3])
    return squares.clamp(min=SMALLEST).rsqrt()


def _among(parts: Tensor) -> Tensor:
    """Cosines among the parts of each item, [items, parts, parts]."""
    return parts @ parts.transpose(1, 2)


def _caption_tiles(order: Tensor, lengths: Tensor, num_words: int) -> list[Tensor]:
    """Split captions, ordered by length, into tiles of about `num_words` words."""
    ends = lengths[order].cumsum(0)
    sizes = torch.bincount((ends - 1) // max(num_words, 1))
    return list(torch.split(order, sizes[sizes > 0].tolist()))
