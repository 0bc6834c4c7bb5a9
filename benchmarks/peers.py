"""Our losses in pytorch-metric-learning (PML), configured to compute the same numbers.

Configuration (`tests/benchmarking/test_benchmarks.py` compares values and gradients of every loss
here):

- Cross-modal losses need `ref_emb`, in one call per direction, and so does the miner. `ref_labels`
  must not be the tensor `labels` itself: PML would then treat the two sides as one set and remove
  the diagonal, which with one caption per image is every positive pair. The loss is silently 0.
- `CosineSimilarity` replaces the default Euclidean distance, so that margins apply to similarities.
  It normalises the embeddings, as ours do in these benchmarks, so the gradients are equal.
- `MeanReducer` or `SumReducer` is set as in ours; the default of triplet and circle is a mean over
  the non-zero terms only.
- `BatchEasyHardMiner("all", "hard")` finds the hardest negative of every (anchor, positive).
  `BatchHardMiner` would keep only the hardest positive of an anchor.
- SmoothAP has no `ref_emb`: images and texts are concatenated, and retrieve among each other. It
  also confuses the number of samples per class with the number of classes, and so takes images for
  the positives of images. It is right only for c classes of c samples in one set of embeddings,
  which is the row "smooth-ap, one set".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.case import Batch

Loss = Callable[[Batch], Tensor]


def pml_loss(what: str) -> Loss:
    """Configure a loss like ours, with the defaults of `gs.objective`."""
    from pytorch_metric_learning import losses, miners, reducers
    from pytorch_metric_learning.distances import CosineSimilarity

    cosine = CosineSimilarity()
    mean, total = reducers.MeanReducer(), reducers.SumReducer()
    triplet = losses.TripletMarginLoss(margin=0.2, distance=cosine, reducer=total)
    multi_similarity = losses.MultiSimilarityLoss(alpha=2, beta=10, base=0.5, reducer=mean)
    match what:
        case "nt-xent":
            return _both_ways(losses.NTXentLoss(temperature=0.1, reducer=mean))
        case "triplet-hard":
            miner = miners.BatchEasyHardMiner("all", "hard", distance=cosine)
            return _both_ways(triplet, miner, average=False)
        case "triplet":
            return _both_ways(triplet, average=False)
        case "circle":
            return _both_ways(losses.CircleLoss(m=0.25, gamma=64, reducer=mean))
        case "multi-similarity":
            return _both_ways(multi_similarity, miners.MultiSimilarityMiner(epsilon=0.1))
        case "multi-similarity, not mined":
            return _both_ways(multi_similarity)
        case "smooth-ap":
            return _concatenated(losses.SmoothAPLoss(temperature=0.01))
        case "smooth-ap, one set":
            return _one_set(losses.SmoothAPLoss(temperature=0.01))
    raise ValueError(f"{what} has no counterpart in pytorch-metric-learning")


def _both_ways(loss: Any, miner: Any = None, *, average: bool = True) -> Loss:
    def one_way(queries: Tensor, ids: Tensor, candidates: Tensor, candidate_ids: Tensor) -> Tensor:
        mined = miner(queries, ids, candidates, candidate_ids) if miner else None
        value: Tensor = loss(queries, ids, mined, candidates, candidate_ids)
        return value

    def both_ways(b: Batch) -> Tensor:
        by_image = one_way(b.images, b.image_ids, b.texts, b.text_ids)
        by_text = one_way(b.texts, b.text_ids, b.images, b.image_ids)
        return (by_image + by_text) / (2 if average else 1)

    return both_ways


def _concatenated(loss: Any) -> Loss:
    def concatenated(b: Batch) -> Tensor:
        value: Tensor = loss(torch.cat([b.images, b.texts]), torch.cat([b.image_ids, b.text_ids]))
        return value

    return concatenated


def _one_set(loss: Any) -> Loss:
    def one_set(b: Batch) -> Tensor:
        value: Tensor = loss(b.texts, b.text_ids)
        return value

    return one_set
