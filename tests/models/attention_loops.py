"""SCAN and BFAN as their papers write them, for one pair at a time, in plain loops.

Numbers are torch scalars, so that autograd differentiates the loops too.
"""

from __future__ import annotations

import torch
from torch import Tensor


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum() / ((a * a).sum().sqrt() * (b * b).sum().sqrt())


def clip(similarity: Tensor, leak: float) -> Tensor:
    return similarity if similarity > 0 else leak * similarity


def relevances(
    queries: Tensor, context: Tensor, scale: float, leak: float, focus: str
) -> list[Tensor]:
    """R of every part of the query: SCAN eq. 1 to 4 (or 7 to 9)."""
    found = []
    for q, weights in zip(queries, attention(queries, context, scale, leak, focus), strict=True):
        attended = sum(w * c for w, c in zip(weights, context, strict=True))
        found.append(cosine(q, attended))
    return found


def attention(
    queries: Tensor, context: Tensor, scale: float, leak: float, focus: str
) -> list[list[Tensor]]:
    """Weights of the parts of the context, for every part of the query; BFAN has a focus."""
    similarity = [[cosine(q, c) for c in context] for q in queries]
    clipped = [[clip(s, leak) for s in row] for row in similarity]
    squares = [torch.stack([row[k] ** 2 for row in clipped]).sum() for k in range(len(context))]
    lengths = [square.sqrt() if square > 0 else square for square in squares]
    found = []
    for row in clipped:
        normalised = [s / n if n > 0 else s for s, n in zip(row, lengths, strict=True)]
        exponentials = [(scale * s).exp() for s in normalised]
        weights = [e / sum(exponentials) for e in exponentials]
        found.append(focal(weights, focus) if focus else weights)
    return found


def focal(weights: list[Tensor], confidence: str) -> list[Tensor]:
    """BFAN: F_i = sum over t of (w_i - w_t) g_t > 0 is kept; all are, where none is."""
    values = [w.item() for w in weights]
    g = [1.0 if confidence == "equal" else w**0.5 for w in values]
    kept = [sum((w - v) * c for v, c in zip(values, g, strict=True)) > 1e-9 for w in values]
    kept = kept if any(kept) else [True] * len(kept)
    total = sum(w for w, k in zip(weights, kept, strict=True) if k)
    return [w / total if k else 0 * w for w, k in zip(weights, kept, strict=True)]


def average(found: list[Tensor]) -> Tensor:
    return torch.stack(found).sum() / len(found)


def log_sum_exp(found: list[Tensor], scale: float) -> Tensor:
    return torch.stack([(scale * r).exp() for r in found]).sum().log() / scale


def scan(
    regions: Tensor,
    words: Tensor,
    *,
    direction: str,
    pooling: str,
    attention_scale: float,
    pooling_scale: float,
    leak: float,
) -> Tensor:
    sides = (words, regions) if direction == "text-to-image" else (regions, words)
    found = relevances(*sides, attention_scale, leak, "")
    return average(found) if pooling == "avg" else log_sum_exp(found, pooling_scale)


def bfan(regions: Tensor, words: Tensor, *, confidence: str, scale: float, leak: float) -> Tensor:
    by_word = relevances(words, regions, scale, leak, confidence)
    by_region = relevances(regions, words, scale, leak, confidence)
    return average(by_word) + average(by_region)
