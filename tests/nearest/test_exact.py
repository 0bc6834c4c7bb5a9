"""Exact search: what scoring everything finds, for every kind of vectors that could mislead it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gradspace.nearest import exact
from gradspace.nearest.exact import MANY, top_rows


def units(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(*shape, generator=generator), dim=-1)


def expected(vectors: Tensor, query: Tensor, k: int, allowed: Tensor | None) -> list[int]:
    """Every row scored in float64, one by one."""
    rows = [row for row in range(len(vectors)) if allowed is None or allowed[row]]
    wide = query.double().numpy()
    scores = {row: float(vectors[row].double().numpy() @ wide) for row in rows}
    return sorted(rows, key=lambda row: (-scores[row], row))[:k]


@pytest.mark.parametrize("num_queries", [1, MANY])
@pytest.mark.parametrize("k", [1, 7, 400])
@pytest.mark.parametrize("filtered", [False, True])
def test_what_scoring_everything_finds(num_queries: int, k: int, filtered: bool) -> None:
    generator = torch.Generator().manual_seed(k)
    vectors = units(generator, 300, 24).half()
    queries = units(generator, num_queries, 24)
    allowed = torch.rand(300, generator=generator) < 0.4 if filtered else None
    for query, (rows, scores) in zip(queries, top_rows(vectors, queries, k, allowed), strict=True):
        assert rows.tolist() == expected(vectors, query, k, allowed)
        true = vectors[rows].double() @ query.double()
        assert np.abs(scores - true.numpy()).max(initial=0) < 1e-7


@pytest.mark.parametrize("num_queries", [1, MANY])
def test_vectors_that_float16_products_cannot_tell_apart(num_queries: int) -> None:
    """Hundreds that differ in the last bit of one number: only exact scores put them in order."""
    generator = torch.Generator().manual_seed(0)
    vectors = units(generator, 1, 16).half().repeat(500, 1)
    places = torch.randint(0, 16, (500,), generator=generator)
    bits = vectors.view(torch.int16)
    bits[torch.arange(500), places] += torch.randint(-1, 2, (500,), generator=generator).short()
    queries = units(generator, num_queries, 16)
    queries[0] = torch.nn.functional.normalize(vectors[0].float(), dim=0)
    found = top_rows(vectors, queries, 20)
    for query, (rows, _) in zip(queries, found, strict=True):
        assert rows.tolist() == expected(vectors, query, 20, None)


@pytest.mark.parametrize("num_queries", [1, MANY])
def test_equal_vectors_are_found_in_their_order(num_queries: int) -> None:
    vectors = torch.nn.functional.normalize(torch.ones(200, 8), dim=1).half()
    queries = vectors[:1].float().repeat(num_queries, 1)
    for rows, _ in top_rows(vectors, queries, 5):
        assert rows.tolist() == [0, 1, 2, 3, 4]


@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 120),
    k=st.integers(1, 50),
    scale=st.sampled_from([1e-3, 1.0]),
)
def test_clusters(seed: int, count: int, k: int, scale: float) -> None:
    """Vectors around one direction, as those of a model that has hardly been trained."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.randn(count, 12, generator=generator) * scale
    vectors = torch.nn.functional.normalize(spread + torch.ones(12), dim=1).half()
    queries = torch.nn.functional.normalize(torch.ones(2, 12) + spread[:1], dim=1)
    for query, (rows, _) in zip(queries, top_rows(vectors, queries, k), strict=True):
        assert rows.tolist() == expected(vectors, query, k, None)


def test_one_query_alone_and_among_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways give the same rows and the same bits, in several blocks."""
    monkeypatch.setattr(exact, "ROWS_AT_ONCE", 64)
    generator = torch.Generator().manual_seed(3)
    vectors, queries = units(generator, 1000, 32).half(), units(generator, MANY + 3, 32)
    together = top_rows(vectors, queries, 9)
    alone = [top_rows(vectors, query[None], 9)[0] for query in queries]
    for one, other in zip(together, alone, strict=True):
        assert np.array_equal(one[0], other[0])
        assert np.array_equal(one[1], other[1])


def test_nothing_to_find() -> None:
    vectors, queries = torch.zeros(0, 4).half(), torch.ones(2, 4)
    assert [len(rows) for rows, _ in top_rows(vectors, queries, 3)] == [0, 0]
    nobody = torch.zeros(5, dtype=torch.bool)
    assert [len(rows) for rows, _ in top_rows(torch.ones(5, 4).half() / 2, queries, 3, nobody)] == [
        0,
        0,
    ]
