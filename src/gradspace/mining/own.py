"""Pairs that belong together, which mining must not list as negatives."""

from __future__ import annotations

import torch
from torch import Tensor

from gradspace.checks import check_embeddings, check_ids
from gradspace.data.pair_ids import ids_by_text
from gradspace.scores.positives import Positives
from gradspace.scores.represented import Embeddings, Represented


def own_positives(found: Represented, device: torch.device) -> Positives:
    """Pair every image with its own texts, and with those of others that are equal word for word.

    A ValueError is raised if embeddings or ids cannot be used.
    """
    num_images, num_texts = len(found.image_names), len(found.captions)
    if isinstance(found, Embeddings):
        check_embeddings(found.images, found.texts)
        num_images, num_texts = len(found.images), len(found.texts)
    check_ids("image_ids", found.image_ids, num_images, "images")
    check_ids("text_ids", found.text_ids, num_texts, "texts")
    return ids_by_text(found.positives().to(device), found.captions).positives()


class OwnPairs:
    """Pairs of images and texts that are not negatives, sorted by tile of the score matrix."""

    def __init__(self, found: Represented, own: Positives, tile: tuple[int, int]) -> None:
        self.height, self.width = tile
        image, text = own.pairs()
        is_pair = found.image_ids.to(image.device)[image] == found.text_ids.to(text.device)[text]
        self.num_columns = -(-own.num_candidates // self.width)
        number = image // self.height * self.num_columns + text // self.width
        order = number.argsort(stable=True)
        image, text = image[order], text[order]
        first = text - text % self.width
        width = (own.num_candidates - first).clamp(max=self.width)
        self.places = image % self.height * width + text - first
        """Positions of the pairs in their tile, row after row, counted from 0."""
        self.texts = text
        self.are_pairs = is_pair[order]
        """Whether the ids of a pair are equal; otherwise its texts are."""
        num_tiles = -(-own.num_queries // self.height) * self.num_columns
        ends = torch.bincount(number, minlength=num_tiles).cumsum(0)
        self.bounds = [0, *ends.tolist()]

    def take_out(self, tile: Tensor, rows: slice, columns: slice, best: Tensor) -> None:
        """Set the pairs of a tile to -inf; raise best[text] to the scores they had."""
        number = rows.start // self.height * self.num_columns + columns.start // self.width
        inside = slice(self.bounds[number], self.bounds[number + 1])
        if inside.start == inside.stop:
            return
        scores, places = tile.view(-1), self.places[inside]
        of_pairs = scores[places].where(self.are_pairs[inside], -torch.inf)
        best.scatter_reduce_(0, self.texts[inside], of_pairs, "amax")
        scores.index_fill_(0, places, -torch.inf)


def check_enough(own: Positives, top_texts: int, top_images: int) -> None:
    """Raise a ValueError if lists would be longer than there are negatives."""
    image, text = own.pairs()
    _check_one_way("top_texts", top_texts, ("image", "captions of other images"), own.shape, image)
    shape = (own.num_candidates, own.num_queries)
    _check_one_way("top_images", top_images, ("caption", "other images"), shape, text)


def _check_one_way(
    name: str, length: int, words: tuple[str, str], shape: tuple[int, int], with_own: Tensor
) -> None:
    query, negatives = words
    if length < 1:
        raise ValueError(f"{name} is {length}; use at least 1")
    num_negatives = shape[1] - torch.bincount(with_own, minlength=shape[0])
    fewest = int(num_negatives.min())
    if fewest == 0:
        raise ValueError(
            f"{query} {int(num_negatives.argmin())} has no {negatives}: nothing can be mined for it"
        )
    if length > fewest:
        raise ValueError(
            f"{name} is {length}; {query} {int(num_negatives.argmin())} has only {fewest} "
            f"{negatives}: use at most --{name.replace('_', '-')} {fewest}"
        )
