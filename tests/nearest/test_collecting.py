"""The kernel that collects candidates, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from interpreted import patch_once
from mining.made import assert_same, odd_embeddings
from torch import Tensor

pytest.importorskip("triton")

from gradspace.mining import mine_exact
from gradspace.nearest import collecting
from gradspace.nearest.collecting import CollectingTop
from gradspace.nearest.running import EMPTY, RunningTop, encode_keys

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LENGTHS: dict[str, Any] = {"top_texts": 9, "top_images": 5}


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Programs of a few scores each, and CPU tensors for GPU ones."""
    if DEVICE.type == "cpu":
        monkeypatch.setattr(collecting, "HEIGHT", 4)
        monkeypatch.setattr(collecting, "WIDTH", 8)
        patch_once(monkeypatch)
    monkeypatch.setattr(collecting, "is_available", lambda values: True)
    with np.errstate(all="ignore"):
        yield


def odd_scores(num_queries: int, num_candidates: int, *, seed: int = 0) -> Tensor:
    """Few different ones, both zeros, and -inf for candidates that are none."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-4, 5, (num_queries, num_candidates), generator=generator) / 4
    scores[torch.rand(scores.shape, generator=generator) < 0.1] = -0.0
    scores[torch.rand(scores.shape, generator=generator) < 0.1] = -torch.inf
    return scores.to(DEVICE)


def in_both_ways(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Scores stored row by row, and the same ones column by column."""
    return scores, scores.t().contiguous().t()


def collected(top: CollectingTop, query: int) -> list[int]:
    pending = top._held[query, top.length :]
    return sorted(key for key in pending.tolist() if key != EMPTY)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (4, 8), (8, 4), (13, 21), (17, 33)])
@pytest.mark.parametrize("first", [0, 5, 2**31 - 7, 2**31])
def test_kernel_collects_what_a_loop_does(shape: tuple[int, int], first: int) -> None:
    for tile in in_both_ways(odd_scores(*shape)):
        top = CollectingTop(shape[0] + 3, 2, DEVICE)
        lowest = odd_scores(1, shape[0] + 3, seed=1)[0]
        top._lowest.copy_(lowest)
        top._launch(slice(2, 2 + shape[0]), tile, first)
        for query in range(shape[0] + 3):
            expected = []
            for candidate in range(shape[1] if 2 <= query < 2 + shape[0] else 0):
                score = tile[query - 2, candidate]
                if score > lowest[query]:
                    key = encode_keys(score, torch.tensor(first + candidate, device=DEVICE))
                    expected.append(int(key))
            assert top._count[query] == len(expected)
            assert collected(top, query) == sorted(expected)
        assert (top._held[:, :2] == EMPTY).all()


def test_kernel_stays_within_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was counted says that some were not stored."""
    monkeypatch.setattr(collecting, "SPARE", 0)
    for tile in in_both_ways(torch.rand(3, 20).to(DEVICE)):
        top = CollectingTop(3, 2, DEVICE)
        top._launch(slice(0, 2), tile[:2], 0)
        assert top._count.tolist() == [20, 20, 0]
        assert [len(collected(top, query)) for query in range(3)] == [6, 6, 0]


def feed(top: RunningTop | CollectingTop, scores: Tensor, width: int) -> Tensor:
    """The keys after many tiles, in order. Each stays as it is only until the next but one."""
    memory = torch.full((2, *scores.shape), torch.nan, device=DEVICE)
    for number, first in enumerate(range(0, scores.shape[1], width)):
        part = scores[:, first : first + width]
        tile = memory[number % 2].fill_(torch.nan)[:, : part.shape[1]].copy_(part)
        for queries in (slice(0, 3), slice(3, len(scores))):
            top.take(queries, tile[queries], first)
    return top.keys.sort(descending=True).values


@pytest.mark.parametrize("spare", [0, 32])
@pytest.mark.parametrize("width", [3, 24, 60])
@pytest.mark.parametrize("order", ["random", "rising", "falling", "waves", "equal"])
@pytest.mark.slow
def test_many_tiles_end_with_the_keys_of_a_running_top(
    order: str, width: int, spare: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where scores rise there is never room for all."""
    monkeypatch.setattr(collecting, "SPARE", spare)
    scores = odd_scores(5, 60)
    if order == "equal":
        scores = torch.zeros_like(scores)
    elif order == "waves":  # the first of a tile is higher than all before it and after it
        index = torch.arange(60.0, device=DEVICE)
        scores = (1000 * (index // width) - index).repeat(5, 1)
    elif order != "random":
        scores = scores.sort(descending=order == "falling").values
    for length in (1, 4):
        expected = feed(RunningTop(5, length, DEVICE), scores, width)
        found = feed(CollectingTop(5, length, DEVICE), scores, width)
        assert torch.equal(found, expected)


def test_queries_that_are_settled_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "SETTLED_AT_ONCE", 2)
    scores = odd_scores(7, 60)
    found = feed(CollectingTop(7, 4, DEVICE), scores, 20)
    assert torch.equal(found, feed(RunningTop(7, 4, DEVICE), scores, 20))


def test_goes_on_from_keys() -> None:
    """Start from keys of either kind, collecting or not."""
    scores = odd_scores(7, 60)
    expected = feed(RunningTop(7, 4, DEVICE), scores, 20)
    for before in (RunningTop(7, 4, DEVICE), CollectingTop(7, 4, DEVICE)):
        feed(before, scores[:, :33], 11)
        top = CollectingTop(7, 4, DEVICE)
        top.restore(before.keys)
        top.take(slice(0, 7), scores[:, 33:], 33)
        assert torch.equal(top.keys.sort(descending=True).values, expected)


@pytest.mark.parametrize("tile", [(512, 4096), (5, 7), (4, 57), (23, 2)])
@pytest.mark.parametrize("spare", [0, 32])
@pytest.mark.slow
def test_lists_are_those_of_a_cpu(
    tile: tuple[int, int], spare: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "SPARE", spare)
    embeddings = odd_embeddings()
    found = mine_exact(embeddings, **LENGTHS, tile=tile, device=DEVICE)
    monkeypatch.setattr(collecting, "is_available", lambda values: False)
    for device in {DEVICE, torch.device("cpu")}:
        assert_same(found, mine_exact(embeddings, **LENGTHS, tile=tile, device=device))


@pytest.mark.slow
def test_a_tile_stays_until_it_is_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores rise, so that every tile is taken again when the next one is computed already."""
    monkeypatch.setattr(collecting, "SPARE", 0)
    made = odd_embeddings()
    images, texts = (1 + torch.arange(len(x)).float()[:, None] for x in (made.images, made.texts))
    embeddings = replace(made, images=images, texts=texts)
    options: dict[str, Any] = {"top_texts": 2, "top_images": 1, "tile": (8, 19), "device": DEVICE}
    found = mine_exact(embeddings, **options)
    monkeypatch.setattr(collecting, "is_available", lambda values: False)
    assert_same(found, mine_exact(embeddings, **options))


class StoppedError(Exception):
    pass


@pytest.mark.slow
def test_an_interrupted_mining_goes_on(tmp_path: Path) -> None:
    def stop(done: int, _: int) -> None:
        if done >= 10:
            raise StoppedError

    options: dict[str, Any] = {**LENGTHS, "tile": (5, 7), "device": DEVICE}
    saved: dict[str, Any] = {"state": tmp_path / "state", "save_every": 0}
    with pytest.raises(StoppedError):
        mine_exact(odd_embeddings(), **options, **saved, progress=stop)
    seen: list[int] = []
    found = mine_exact(odd_embeddings(), **options, **saved, progress=lambda n, _: seen.append(n))
    assert seen == [15, 20, 23]
    assert_same(found, mine_exact(odd_embeddings(), **options))


def test_a_kernel_that_does_not_compile_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.")

    collecting._compiles.cache_clear()
    monkeypatch.setattr(CollectingTop, "_launch", fail)
    with pytest.warns(UserWarning, match="cannot be used here .Failed to find C compiler"):
        found = mine_exact(odd_embeddings(), **LENGTHS, device=DEVICE)
    collecting._compiles.cache_clear()
    monkeypatch.setattr(collecting, "is_available", lambda values: False)
    assert_same(found, mine_exact(odd_embeddings(), **LENGTHS, device=DEVICE))
