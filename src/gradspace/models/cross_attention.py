"""Cross attention between regions and words: what SCAN and BFAN share, in blocks of pairs.

Every part of a query (a word, say) attends to the parts of a context (the regions of an image), and
is compared with the vector a that it has attended to:

    attention weights w_k of the parts c_k of the context, a = sum over k of w_k c_k
    relevance of part q = cos(q, a)

Parts are unit vectors, so that no vector a is ever built: with the cosines s_k = q . c_k and the
cosines G of the context's parts among each other, q . a = sum of w_k s_k and |a|^2 = w G w. A block
of pairs is one matrix product and some work on its similarities; the width of the parts is in no
other step.
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
"""Who attends: the words to the regions, or the regions to the words."""

TILE_BYTES = {"cpu": 8 << 20, "cuda": 256 << 20}
"""Of the similarities of a tile: those of a CPU stay near its cache."""
IMAGES_AT_ONCE = 256
KEPT_BYTES = 2 << 30
"""Of activations up to which a backward pass finds them in memory; beyond, tiles are computed
again."""
COPIES = 12
"""Of the similarities that are kept for a backward pass, in each direction."""
SMALLEST = 1e-24
"""Square of a length, in place of zero."""


class AttentionSide(NamedTuple):
    """What one side of pairs attends with."""

    direction: Direction
    similarities: Tensor
    """[queries, parts, contexts, parts of a context]"""
    context: Tensor
    """The parts of the contexts."""
    attending: Tensor | None
    """Which parts of the queries there are; None: all."""
    attended: Tensor | None
    """Which parts of the contexts there are."""


class CrossAttention(PairScorer):
    """Regions through one layer, words through a bi-directional GRU whose directions are averaged.

    A model says which `directions` it attends in, the attention `weights` of a part, how it pools
    the relevance of the parts of a query, and how the pooled score is shared out; the scores of the
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
        """Attention weights [queries, parts, contexts, parts of a context], of sum 1 over the last.

        `present` [contexts, parts of a context] says which of them there are; None: all.
        """

    @abstractmethod
    def pool(self, relevance: Tensor, present: Tensor | None) -> Tensor:
        """[queries, contexts], from the relevance of every part, [queries, parts, contexts].

        `present` says which parts there are, None: all; it has the same shape, or a 1 in it.
        """

    @abstractmethod
    def share_out(self, cosines: Tensor, weights: Tensor, present: Tensor | None) -> Tensor:
        """What every part of a query adds to the pooled score by every part of a context.

        `cosines` [queries, parts, contexts, parts of a context] add up to the relevance over the
        last; what this returns, of the same shape, adds up to the score over both. `weights` are
        the attention's, `present` as in `pool`.
        """

    def parts_of_images(self, images: Tensor) -> Tensor:
        return unit(self.project(self.images(images)))

    def parts_of_texts(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        present = length_mask(lengths.to(tokens.device), tokens.shape[1])
        return unit(self.texts(tokens, lengths)).masked_fill(~present[..., None], 0)

    def score(self, images: Tensor, texts: Tensor, lengths: Tensor) -> Tensor:
        """Tile by tile; captions of similar lengths share a tile, of as many words as they have.

        Where the activations of all tiles together are large, a backward pass computes them again.
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
        """The attention, and both sides' parts of the score that it leads to.

        The relevance of a part is a sum over what it attends to, sum over k of w_k s_k / |a|. Where
        both sides attend, the attention is that of the words.
        """
        regions, words = self(images, tokens, lengths)
        return self.explain_parts(regions, words, lengths)

    def explain_parts(self, images: Tensor, texts: Tensor, lengths: Tensor) -> Contributions:
        """As `explain`, from what `score_pairs` takes."""
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
        """Of pairs by position, who attends: one query with as many contexts."""
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
        """[images, texts of the tile]."""
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
        """All pairs at once: the similarities are [texts, words, images, regions]."""
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
        """cos(part, what it attends to), [queries, parts, contexts]; `among` is of the contexts."""
        weights = self.weights(similarities, present)
        return (weights * similarities).sum(3) * _per_length(weights, among)


def clipped_attention(
    similarities: Tensor, present: Tensor | None, *, scale: float, leak: float
) -> Tensor:
    """softmax of scale * s / |s| over the parts of a context, where negative s count little.

    Negative similarities are multiplied by `leak`; the length |s| is over the parts of the query,
    for every part of the context (SCAN eq. 2).
    """
    clipped = nn.functional.leaky_relu(similarities, leak)
    lengths = clipped.square().sum(1, keepdim=True).clamp(min=SMALLEST)
    logits = clipped * (scale * lengths.rsqrt())
    if present is not None:
        logits = logits.masked_fill(~present, -torch.inf)
    return logits.softmax(3)


def mean_relevance(relevance: Tensor, present: Tensor | None) -> Tensor:
    """[queries, contexts]: the mean over the parts that there are."""
    if present is None:
        return relevance.mean(1)
    return relevance.where(present, 0).sum(1) / present.sum(1)


def share_out_mean(cosines: Tensor, present: Tensor | None) -> Tensor:
    """What `mean_relevance` is the sum of."""
    if present is None:
        return cosines / cosines.shape[1]
    return cosines.where(present[..., None], 0) / present.sum(1, keepdim=True)[..., None]


def _per_length(weights: Tensor, among: Tensor) -> Tensor:
    """1 / |a| of what is attended to, [queries, parts, contexts]."""
    by_context = weights.flatten(0, 1).transpose(0, 1)
    squares = ((by_context @ among) * by_context).sum(2).t().view(weights.shape[:3])
    return squares.clamp(min=SMALLEST).rsqrt()


def _among(parts: Tensor) -> Tensor:
    """Cosines of the parts of a thing among each other, [things, parts, parts]."""
    return parts @ parts.transpose(1, 2)


def _caption_tiles(order: Tensor, lengths: Tensor, num_words: int) -> list[Tensor]:
    """Captions in the order of their lengths, in tiles of about so many words, at least one."""
    ends = lengths[order].cumsum(0)
    sizes = torch.bincount((ends - 1) // max(num_words, 1))
    return list(torch.split(order, sizes[sizes > 0].tolist()))
