"""Many clients at once get their own answers; and the benchmark would tell if they did not."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from serve.fakes import COLOURS, SHAPES, FakeSearcher, make_searcher
from serve.running import running

from gradspace.indexes.searcher import Query
from gradspace.serve.app import make_app

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.serve_load import Load, batch_seconds, put_load, same, told

SENTENCES = [f"a {colour} {shape}" for colour in COLOURS for shape in SHAPES]


@pytest.mark.slow
def test_two_hundred_clients_for_two_seconds() -> None:
    searcher = make_searcher(slow=0.01)
    with running(make_app([searcher])) as address:
        load = asyncio.run(put_load(address, SENTENCES, clients=200, seconds=2))
    assert (load.wrong, load.lost, load.refused) == (0, 0, 0)
    assert len(load.seconds) >= 200, "each client got an answer"
    assert max(cast(FakeSearcher, searcher).batches) > 16
    batch = batch_seconds(make_searcher(slow=0.01), SENTENCES)
    assert batch >= 0.01
    text = told(load, 200, batch)
    assert "0 wrong, 0 lost, 0 refused" in text
    assert "p99 is" in text


@pytest.mark.slow
def test_answers_that_are_mixed_up_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = FakeSearcher.embed

    def mixed(self: FakeSearcher, queries: list[Query]) -> NDArray[np.float32]:
        return np.roll(plain(self, queries), 1, axis=0)

    monkeypatch.setattr(FakeSearcher, "embed", mixed)
    with running(make_app([make_searcher(slow=0.01)])) as address:
        load = asyncio.run(put_load(address, SENTENCES, clients=8, seconds=0.5))
    assert load.wrong > len(load.seconds)


@pytest.mark.slow
def test_answers_that_are_lost_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app([make_searcher()])
    broken = Broken(app)
    with running(broken) as address:  # type: ignore[arg-type]
        load = asyncio.run(put_load(address, SENTENCES, clients=2, seconds=0.5))
    assert load.lost > 0
    assert load.seconds


class Broken:
    """Hangs up on every third request once it was asked every sentence."""

    def __init__(self, app: Any) -> None:
        self.app, self.asked = app, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self.asked += 1
            if self.asked > len(SENTENCES) and self.asked % 3 == 0:
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
        await self.app(scope, receive, send)


def test_equal_scores_may_change_places() -> None:
    hits = [("a", 0.5), ("b", 0.4), ("c", 0.3)]
    assert same(hits, hits)
    assert same([("a", 0.5), ("c", 0.3001), ("b", 0.3)], [("a", 0.5), ("b", 0.3), ("c", 0.3)])
    assert same([("a", 0.5), ("d", 0.3)], [("a", 0.5), ("c", 0.3)]), "a tie at the end"
    assert not same(hits, hits[:2])
    assert not same([("d", 0.5), *hits[1:]], hits)
    assert not same([("b", 0.5), ("a", 0.4), ("c", 0.3)], hits)


def test_two_sentences_with_one_answer_cannot_be_told_apart() -> None:
    with (
        running(make_app([make_searcher()])) as address,
        pytest.raises(ValueError, match="same answer"),
    ):
        asyncio.run(put_load(address, ["red", "RED"], clients=1, seconds=0.1))
    assert np.isnan(Load().percentile(99))
