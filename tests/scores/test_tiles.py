"""Score matrices that are seen through tiles."""

from __future__ import annotations

import torch

import gradspace as gs


def test_normalized_embeddings_score_cosines() -> None:
    torch.manual_seed(0)
    queries, candidates = torch.randn(5, 8), 3 * torch.randn(7, 8)
    scores = gs.EmbeddingScores(queries, candidates, normalize=True)
    expected = torch.nn.functional.cosine_similarity(queries[:, None], candidates[None], dim=2)
    whole = slice(0, 5), slice(0, 7)
    torch.testing.assert_close(scores.tile(*whole), expected)
    torch.testing.assert_close(scores.transpose().tile(*reversed(whole)), expected.t())
    plain = gs.EmbeddingScores(queries, candidates)
    torch.testing.assert_close(plain.tile(*whole), queries @ candidates.t())
