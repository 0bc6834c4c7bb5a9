"""ECCV Caption: COCO's test set with the matches missing from its annotations (Chun et al. 2022).

Needs the package `eccv_caption` (the extra `eccv`) and COCO's own ids of images and captions.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradspace.commands import pip_install
from gradspace.scores.tiles import Scores, as_scores, blocks

DEPTH = 50
"""Number of candidates per query that the package evaluates."""


def eccv_caption_report(
    scores: Tensor | Scores, image_ids: Sequence[int], caption_ids: Sequence[int]
) -> dict[str, dict[str, float]]:
    """Compute COCO 1K/5K R@1, CxC R@1, ECCV R@1 and mAP@R in percent: {metric: {direction: x}}."""
    source, metrics = as_scores(scores), load_metrics(caption_ids)
    by_image = _retrieved(source, image_ids, caption_ids)
    by_caption = _retrieved(source.transpose(), caption_ids, image_ids)
    found = metrics.compute_all_metrics(by_image, by_caption, verbose=False)
    return {
        name: {direction: 100 * float(value) for direction, value in values.items()}
        for name, values in found.items()
    }


def load_metrics(caption_ids: Sequence[int]) -> Any:
    """Load the package's annotations; raise a ValueError unless they are of these captions."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns that json is slower than ujson
            from eccv_caption import Metrics
    except ImportError:
        needed = pip_install("gradspace[eccv]")
        raise ValueError(f"ECCV Caption needs its package: {needed}") from None
    metrics = Metrics()
    unknown = set(caption_ids) ^ set(metrics.coco_gts["t2i"])
    if unknown:
        raise ValueError(
            "ECCV Caption needs COCO's 5,000 test images and their 25,010 captions; "
            f"{len(unknown)} caption ids differ"
        )
    return metrics


def _retrieved(
    source: Scores, queries: Sequence[int], candidates: Sequence[int]
) -> dict[int, list[int]]:
    """List the best candidates of every query, best first."""
    names = torch.tensor(list(candidates))
    found: dict[int, list[int]] = {}
    for rows in blocks(source.shape[0], 512):
        tile = source.tile(rows, slice(0, source.shape[1]))
        best = names[tile.topk(min(DEPTH, tile.shape[1]), dim=1).indices.cpu()]
        found |= dict(zip(queries[rows], best.tolist(), strict=True))
    return found
