"""The demo: objectives compared on a synthetic batch, by what contributes to their gradients."""

from __future__ import annotations

import torch

from gradspace.analysis.score_file import SavedScores
from gradspace.positives import match_ids

OBJECTIVES = (
    "triplet",
    "triplet-hard",
    "nt-xent",
    "smooth-ap",
    "circle/sigmoid-ms",
)


def synthetic_batch(
    num_images: int = 128, captions_per_image: int = 5, noise: float = 1.5, seed: int = 0
) -> SavedScores:
    """Scores of a half-trained model: captions scattered around their images on the sphere."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(num_images, 32, generator=generator)
    image_ids = torch.arange(num_images)
    text_ids = image_ids.repeat_interleave(captions_per_image)
    texts = images[text_ids] + noise * torch.randn(len(text_ids), 32, generator=generator)
    scores = torch.nn.functional.normalize(images) @ torch.nn.functional.normalize(texts).t()
    return SavedScores(scores, match_ids(image_ids, text_ids))
