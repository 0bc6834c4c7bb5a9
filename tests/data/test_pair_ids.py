"""Positives by what captions say, held against loops over the letters of every two captions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from repeated import relation, write_repeated

from gradspace.data import check_dataset, open_dataset
from gradspace.data.pair_ids import ids_by_image, ids_by_text, text_numbers
from gradspace.scores.positives import match_ids


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_positives_are_those_of_loops(split: str, tmp_path: Path) -> None:
    folder, features = write_repeated(tmp_path)
    part = open_dataset(folder, features=features).splits[split]
    own = ids_by_image(part).positives()
    found = ids_by_text(own, part.captions).positives()
    expected = relation(list(part.captions), part.image_of_caption.tolist(), len(part.image_names))
    pairs = [(i, c) for i, row in enumerate(expected) for c, true in enumerate(row) if true]
    assert list(zip(*(side.tolist() for side in found.pairs()), strict=True)) == pairs
    assert len(pairs) > len(part.captions), "captions are shared"
    captions, images = (side.tolist() for side in found.transpose().pairs())
    assert sorted(zip(images, captions, strict=True)) == pairs


def test_words_count_and_nothing_else() -> None:
    captions = ["A river .", "a  river", "river a", "A River!", "...", "!!!", "...", "river, a"]
    assert text_numbers(captions).tolist() == [0, 0, 1, 0, 2, 3, 2, 1]


def test_an_image_without_captions_belongs_to_none() -> None:
    own = match_ids([0, 1, 2], [0, 2, 2])
    found = ids_by_text(own, ["a tree", "a tree", "a field"])
    mask = torch.zeros(3, 3, dtype=torch.bool)
    mask[found.positives().pairs()] = True
    assert mask.tolist() == [[True, True, False], [False] * 3, [True, True, True]]
    nothing = ids_by_text(match_ids([0, 1], []), []).positives()
    assert (nothing.shape, int(nothing.valid.sum())) == ((2, 0), 0)


def test_the_check_says_how_many_captions_are_shared(tmp_path: Path) -> None:
    folder, _ = write_repeated(tmp_path)
    features = folder / "five.npy"
    np.save(features, np.zeros((5, 3), np.float32))
    (folder / "captions.tsv").write_text(
        "image\tcaption\n0.jpg\ta tree\n1.jpg\tA tree.\n1.jpg\ta road\n2.jpg\ta field\n"
        "2.jpg\tanother field\n3.jpg\ta road\n4.jpg\ta road .\n"
    )
    (folder / "train.txt").write_text("0.jpg\n1.jpg\n2.jpg\n3.jpg\n")
    (folder / "dev.txt").write_text("4.jpg\n")
    (folder / "test.txt").unlink()
    report = check_dataset(folder, features=features)
    text = str(report)
    assert (
        "the same caption at several images: 2 of 4 different ones, at 3 images; one at 2" in text
    )
    assert text.count("the same caption") == 1, "not of dev, whose caption stands at one image"
