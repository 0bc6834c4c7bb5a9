"""Captions that stand word for word at several images: embeddings, and a dataset on disk."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
from embedded import Embedded, embedded
from torch import Tensor

WORDS = ("many", "green", "trees", "are", "near", "a", "river", "road", "field", "house")


def relation(captions: list[str], images: list[int], num_images: int) -> list[list[bool]]:
    """[image][caption]: does one of the image's captions have the same letters? By plain loops."""
    said = ["".join(c for c in caption.lower() if c.isalpha() or c == " ") for caption in captions]
    said = [" ".join(text.split()) for text in said]
    own = [{said[k] for k, i in enumerate(images) if i == image} for image in range(num_images)]
    return [[text in own[image] for text in said] for image in range(num_images)]


def repeated(seed: int = 0, ties: bool = False) -> tuple[Embedded, Tensor]:
    """23 images with one to three of 9 texts each, 57 captions of one text; the relation.

    Texts are shared by pairs of images that share no other one: no single id could say that. Image
    0 has a text that no caption has, and caption 0 a text that no image has.
    """
    rng = random.Random(seed)
    batch = embedded(seed=seed)
    own = [rng.sample(range(9), rng.randint(1, 3)) for _ in range(23)]
    own[0] = [20]
    text = [rng.randrange(9) for _ in range(57)]
    text[0] = 30
    ids = torch.tensor([[*texts, *[texts[0]] * (3 - len(texts))] for texts in own])
    mask = torch.tensor([[one in texts for one in text] for texts in own])
    images, texts = (
        (2 * side).round() / 2 if ties else side for side in (batch.images, batch.texts)
    )
    return Embedded(images, texts, ids, torch.tensor(text)), mask


def write_repeated(folder: Path, num_images: int = 60, seed: int = 0) -> tuple[Path, Path]:
    """A folder with captions.tsv and splits, one to three captions an image; and its features."""
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    sentences = [" ".join(rng.sample(WORDS, 4)) for _ in range(num_images // 2)]
    names = [f"{k}.jpg" for k in range(num_images)]
    rows = []
    for name in names:
        for sentence in rng.sample(sentences, rng.randint(1, 3)):
            written = rng.choice([sentence, sentence.capitalize() + ".", f"{sentence} ,"])
            rows.append(f"{name}\t{written}")
    (folder / "captions.tsv").write_text("\n".join(["image\tcaption", *rows]) + "\n")
    train = num_images * 2 // 3
    dev = train + num_images // 6
    for split, part in (("train", names[:train]), ("dev", names[train:dev]), ("test", names[dev:])):
        (folder / f"{split}.txt").write_text("\n".join(part) + "\n")
    features = folder / "features.npy"
    np.save(features, np.random.default_rng(seed).standard_normal((num_images, 12), np.float32))
    return folder, features
