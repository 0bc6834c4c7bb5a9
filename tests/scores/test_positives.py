from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gradspace as gs
from gradspace.execution.choice import Execution
from gradspace.scores.positives import Positives, match_ids, match_mask, match_positions, stable_ids

ids = st.lists(st.integers(0, 5), min_size=1, max_size=12)


def as_mask(positives: Positives) -> torch.Tensor:
    mask = torch.zeros(positives.shape, dtype=torch.bool)
    mask[positives.pairs()] = True
    return mask


@settings(max_examples=100, deadline=None)
@given(queries=ids, candidates=ids)
def test_ids_masks_and_transposes_agree(queries: list[int], candidates: list[int]) -> None:
    expected = torch.tensor(queries)[:, None] == torch.tensor(candidates)
    by_ids = match_ids(queries, candidates)
    assert torch.equal(as_mask(by_ids), expected)
    assert torch.equal(as_mask(match_mask(expected)), expected)
    assert torch.equal(as_mask(by_ids.transpose()), expected.t())
    assert torch.equal(by_ids.any_valid, expected.any(1))


several = st.integers(1, 3).flatmap(
    lambda k: st.lists(st.lists(st.integers(0, 8), min_size=k, max_size=k), min_size=1, max_size=9)
)


@settings(max_examples=100, deadline=None)
@given(queries=several, candidates=st.one_of(several, ids))
def test_one_id_in_common_is_enough(queries: list[list[int]], candidates: list[Any]) -> None:
    sets = [set(one) if isinstance(one, list) else {one} for one in candidates]
    expected = torch.tensor([[bool(set(query) & one) for one in sets] for query in queries])
    found = match_ids(queries, candidates)
    assert torch.equal(as_mask(found), expected)
    assert torch.equal(as_mask(match_ids(candidates, queries)), expected.t())
    assert found.valid.sum() == expected.sum(), "no pair counts twice"
    names = [[f"id {one}" for one in query] for query in queries]
    other = [[f"id {i}" for i in o] if isinstance(o, list) else f"id {o}" for o in candidates]
    assert torch.equal(as_mask(match_ids(names, other)), expected)


def test_rows_of_ids_are_of_one_length() -> None:
    with pytest.raises(ValueError, match="rows of different lengths: repeat an id where there are"):
        match_ids([[1, 2], [3]], [1, 2])


@settings(max_examples=50, deadline=None)
@given(queries=ids, candidates=ids)
def test_invalid_slots_repeat_the_first_positive(queries: list[int], candidates: list[int]) -> None:
    positives = match_ids(queries, candidates)
    first = positives.index[:, :1].expand_as(positives.index)
    has_one = positives.any_valid[:, None]
    assert torch.equal(
        positives.index.where(~positives.valid & has_one, 0),
        first.where(~positives.valid & has_one, 0),
    )
    assert ((positives.index >= 0) & (positives.index < len(candidates))).all()


def test_parts_keep_only_their_own_candidates() -> None:
    mask = torch.tensor([[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 1]]).bool()
    part, candidates = match_mask(mask).part(1, 3)
    assert candidates.tolist() == [1, 3]
    assert as_mask(part).tolist() == [[True, False], [False, True]]


def test_permuted_candidates_are_the_same_pairs() -> None:
    mask = torch.rand(4, 6) > 0.5
    order = torch.randperm(6)
    assert torch.equal(as_mask(match_mask(mask).permute_candidates(order)), mask[:, order])


def test_positions() -> None:
    assert torch.equal(as_mask(match_positions(3)), torch.eye(3, dtype=torch.bool))


@pytest.mark.parametrize(
    "same",
    [
        [3, 1, 2],
        np.array([3, 1, 2], dtype=object),
        np.array([3, 1, 2], dtype=np.uint64),
        torch.tensor([3, 1, 2]).to(torch.uint64),
        torch.arange(3).repeat_interleave(2)[::2] * 2 - 1,
    ],
)
def test_the_type_of_an_id_changes_nothing(same: Any) -> None:
    images, texts = torch.eye(3), torch.eye(3).flip(0)
    expected = stable_ids([int(number) for number in same], torch.device("cpu")).tolist()
    assert match_ids(expected, same).pairs()[1].tolist() == [0, 1, 2]
    found = [
        gs.RetrievalLoss("nt-xent", execution=execution)(images, texts, expected, same)
        for execution in ("dense", "streamed")
    ]
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("execution", ["dense", "streamed"])
def test_ids_that_are_none(execution: Execution) -> None:
    loss = gs.RetrievalLoss("nt-xent", execution=execution)
    for wrong in ([0.0, 1.0], [None, None], np.zeros((2, 1, 1), int), np.array([True, 1], object)):
        with pytest.raises(ValueError, match="ids must be a vector of integers or names"):
            loss(torch.eye(2), torch.eye(2), [0, 1], wrong)
    with pytest.raises(ValueError, match=r"ids must be a vector of .* got torch.float32"):
        match_ids(torch.tensor([0.2]), torch.tensor([0.4]))
    with pytest.raises(ValueError, match="no image id equals a text id"):
        loss(torch.eye(2), torch.eye(2), [0, 1], ["0", "1"])


@pytest.mark.parametrize("names", [["a", "b"], [1, 2]])
def test_names_or_numbers(names: list[str] | list[int]) -> None:
    assert as_mask(match_ids(names, names[::-1])).tolist() == [[False, True], [True, False]]
