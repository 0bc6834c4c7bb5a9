"""A caption that says what one of an image's own says is never listed as its negative."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from mining.made import Loops, odd_embeddings
from repeated import relation

from gradspace.mining import MinedLists, mine_exact, mine_with_faiss
from gradspace.scores.represented import Embeddings


def shared_captions() -> Embeddings:
    """Forty images, each with two or three of eleven captions, spelt in two ways."""
    made = odd_embeddings(40, 90)
    image_ids, text_ids = torch.arange(40), torch.arange(90) % 40
    spelt = ("A tree {} .", "a Tree, {}")
    captions = [spelt[k % 2].format("abcdefghijk"[k % 11]) for k in range(90)]
    return replace(made, image_ids=image_ids, text_ids=text_ids, captions=captions)


def positives_of(made: Embeddings) -> np.ndarray:
    return np.array(relation(list(made.captions), made.text_ids.tolist(), len(made.images)))


def lists_by_sorting(made: Embeddings, top_texts: int, top_images: int) -> Loops:
    scores, known = (made.images @ made.texts.t()).tolist(), positives_of(made)
    of_images = [
        sorted((t for t in range(90) if not known[i][t]), key=lambda t: (-scores[i][t], t))
        for i in range(40)
    ]
    of_texts = [
        sorted((i for i in range(40) if not known[i][t]), key=lambda i: (-scores[i][t], i))
        for t in range(90)
    ]
    return [row[:top_texts] for row in of_images], [row[:top_images] for row in of_texts]


@pytest.mark.parametrize("tile", [None, (7, 16)])
def test_lists_are_those_of_loops(tile: tuple[int, int] | None) -> None:
    made = shared_captions()
    found = mine_exact(made, top_texts=30, top_images=12, tile=tile)
    of_images, of_texts = lists_by_sorting(made, 30, 12)
    assert found.texts_of_image.tolist() == of_images
    assert found.images_of_text.tolist() == of_texts
    check_positive_scores(made, found)


def check_positive_scores(made: Embeddings, found: MinedLists) -> None:
    """Scores of captions with the images they were written for, not with others that share them."""
    own = (made.images[made.text_ids] * made.texts).sum(1)
    np.testing.assert_allclose(found.positive_scores, own.numpy(), rtol=1e-3)


def test_approximate_lists_leave_them_out_too() -> None:
    pytest.importorskip("faiss")
    made = shared_captions()
    found = mine_with_faiss(made, top_texts=30, top_images=12)
    known = positives_of(made)
    assert not known[np.arange(40)[:, None], found.texts_of_image].any()
    assert not known[found.images_of_text, np.arange(90)[:, None]].any()
    check_positive_scores(made, found)


def test_lists_that_are_longer_than_what_is_left_are_refused() -> None:
    made = shared_captions()
    fewest = int((~positives_of(made)).sum(1).min())
    with pytest.raises(ValueError, match=f"has only {fewest} captions of other images"):
        mine_exact(made, top_texts=fewest + 1, top_images=2)
    assert fewest < 88, "an image has at most two captions that no other one has"
