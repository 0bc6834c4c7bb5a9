"""Embeddings and lists made up for tests of mining, and lists found by plain loops."""

from __future__ import annotations

import numpy as np
import torch
from embedded import embedded
from numpy.typing import NDArray

from gradspace.data.dataset import Split
from gradspace.mining import MinedLists
from gradspace.mining.lists import ARRAYS, describe_source
from gradspace.scores.represented import Embeddings

Loops = tuple[list[list[int]], list[list[int]]]


def odd_embeddings(
    num_images: int = 23, num_texts: int = 57, *, seed: int = 0, whole: bool = True
) -> Embeddings:
    """Images with no text and with several, two images of one id, texts without an image.

    Whole numbers have many equal scores, which every precision computes exactly.
    """
    made = embedded(num_images, num_texts, seed=seed, dtype=torch.float32)
    images, texts = (3 * x.round(decimals=7) for x in (made.images, made.texts))
    if whole:
        images, texts = images.round(), texts.round()
    return named(images, texts, made.image_ids, made.text_ids)


def named(
    images: torch.Tensor, texts: torch.Tensor, image_ids: torch.Tensor, text_ids: torch.Tensor
) -> Embeddings:
    names = [f"{index}.jpg" for index in range(len(images))]
    captions = [f"caption {index}" for index in range(len(texts))]
    return Embeddings(images, texts, image_ids, text_ids, names, captions)


def lists_by_loops(embeddings: Embeddings, top_texts: int, top_images: int) -> Loops:
    """Sort all negatives of every query by score in float64, then by index."""
    images, texts = embeddings.images.double().tolist(), embeddings.texts.double().tolist()
    image_ids, text_ids = embeddings.image_ids.tolist(), embeddings.text_ids.tolist()
    scores = [[sum(a * b for a, b in zip(i, t, strict=True)) for t in texts] for i in images]
    of_images, of_texts = [], []
    for image in range(len(images)):
        others = [t for t in range(len(texts)) if text_ids[t] != image_ids[image]]
        of_images.append(sorted(others, key=lambda t: (-scores[image][t], t))[:top_texts])
    for text in range(len(texts)):
        others = [i for i in range(len(images)) if image_ids[i] != text_ids[text]]
        of_texts.append(sorted(others, key=lambda i: (-scores[i][text], i))[:top_images])
    return of_images, of_texts


def assert_same(found: MinedLists, expected: MinedLists) -> None:
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), name)


def random_split(num_images: int = 40, *, seed: int = 0, shuffled: bool = False) -> Split:
    """One to four captions per image."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(num_images), rng.integers(1, 5, num_images))
    if shuffled:
        owner = rng.permutation(owner)
    names = [f"{index}.jpg" for index in range(num_images)]
    return Split("train", names, [f"caption {index}" for index in range(len(owner))], owner)


def random_lists(
    split: Split, top_texts: int = 30, top_images: int = 6, *, seed: int = 0
) -> MinedLists:
    """Lists of random negatives with falling scores; positives score about as high as they do."""
    rng = np.random.default_rng(seed)
    owner = np.asarray(split.image_of_caption)
    num_images, num_texts = len(split.image_names), len(owner)
    texts = [
        rng.permutation(np.flatnonzero(owner != image))[:top_texts] for image in range(num_images)
    ]
    images = [
        rng.permutation(np.delete(np.arange(num_images), owner[text]))[:top_images]
        for text in range(num_texts)
    ]
    ids = torch.arange(num_images), torch.from_numpy(owner)
    nothing = torch.zeros(num_images, 1), torch.zeros(num_texts, 1)
    embeddings = Embeddings(*nothing, *ids, split.image_names, split.captions)
    return MinedLists(
        texts_of_image=np.array(texts, np.int32),
        text_scores=falling(rng, num_images, top_texts),
        images_of_text=np.array(images, np.int32),
        image_scores=falling(rng, num_texts, top_images),
        positive_scores=rng.random(num_texts).astype(np.float16),
        record=describe_source(embeddings, {}, {"dataset": "made-up", "split": "train"}),
    )


def falling(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.float16]:
    return -np.sort(-rng.random((rows, columns)).astype(np.float16), axis=1)
