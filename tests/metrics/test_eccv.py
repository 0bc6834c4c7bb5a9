"""ECCV Caption through its own package, which ships COCO's test ids."""

from __future__ import annotations

import warnings

import pytest
import torch

import gradspace as gs
from gradspace.metrics.eccv import eccv_caption_report


@pytest.mark.slow
def test_coco_recalls_are_ours() -> None:
    """The package's COCO 5K R@1 and our recall are the same numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package = pytest.importorskip("eccv_caption")
    of_caption = {c: images[0] for c, images in package.Metrics().coco_gts["t2i"].items()}
    captions, images = list(of_caption), sorted(set(of_caption.values()))
    assert len(images) == 5000
    torch.manual_seed(0)
    places = {image: place for place, image in enumerate(images)}
    owner = torch.tensor([places[of_caption[c]] for c in captions])
    image_vectors = torch.nn.functional.normalize(torch.randn(5000, 16))
    noise = 0.35 * torch.randn(len(captions), 16)
    text_vectors = torch.nn.functional.normalize(image_vectors[owner] + noise)
    scores = gs.EmbeddingScores(image_vectors, text_vectors)
    report = eccv_caption_report(scores, images, captions)
    ours = gs.retrieval_report(scores, gs.match_ids(torch.arange(5000), owner))
    assert 1 < ours.text_to_image.recall[1] < 99
    assert report["coco_5k_r1"]["i2t"] == pytest.approx(ours.image_to_text.recall[1])
    assert report["coco_5k_r1"]["t2i"] == pytest.approx(ours.text_to_image.recall[1])
    assert set(report) >= {"coco_1k_r1", "cxc_r1", "eccv_r1", "eccv_map_at_r"}


def test_other_captions_are_refused() -> None:
    pytest.importorskip("eccv_caption")
    with pytest.raises(ValueError, match="ECCV Caption needs COCO's 5,000 test images"):
        eccv_caption_report(torch.eye(2), [1, 2], [3, 4])
