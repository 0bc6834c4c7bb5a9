"""Requests share batches, and none is lost, mixed up or harmed by another."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastapi import FastAPI
from serve.asking import answered, ask, get, keys, sentence
from serve.fakes import COLOURS, SHAPES, make_searcher
from serve.running import running

from gradspace.indexes.contract import Hit, Kind
from gradspace.indexes.searcher import Query, Searcher
from gradspace.indexes.where import parse_condition
from gradspace.serve.app import make_app
from gradspace.serve.batching import Ask, Batcher
from gradspace.serve.limits import Limits

RED = "flat/red circle #0.jpg"


def submit(batcher: Batcher, text: str, k: int = 3, kind: Kind = "image") -> Ask:
    wanted = Ask(Query(text=text), k, kind)
    batcher.submit(wanted)
    return wanted


def found(wanted: Ask) -> list[str]:
    return [hit.item.key for hit in wanted.answer.result(5).hits]


def of(searcher: Searcher) -> Any:
    """The fake behind a searcher, which keeps account."""
    return searcher


@contextmanager
def busy(batcher: Batcher, searcher: Searcher) -> Iterator[Ask]:
    """While it lasts, the model is busy with a first request, and others wait."""
    fake = of(searcher)
    fake.gate.clear()
    first = submit(batcher, "a red circle")
    assert fake.entered.wait(5)
    yield first
    fake.gate.set()


def test_what_comes_together_is_embedded_and_searched_together() -> None:
    searcher = make_searcher()
    batcher = Batcher(searcher, Limits(batch=8))
    texts = [f"a {colour} {shape}" for colour in COLOURS for shape in SHAPES[:2]]
    with busy(batcher, searcher) as first:
        asked = [submit(batcher, text, k=1 + n % 3) for n, text in enumerate(texts)]
    assert found(first)[0] == RED
    for number, (text, wanted) in enumerate(zip(texts, asked, strict=True)):
        assert len(found(wanted)) == 1 + number % 3
        assert wanted.answer.result().hits[0].item.text.startswith(text)
    assert of(searcher).batches == [1, 8, 4]
    assert of(searcher).index.engine.searches == [1, 8, 4]
    batcher.close()


def test_each_kind_and_condition_is_searched_for_itself() -> None:
    searcher = make_searcher()
    batcher = Batcher(searcher, Limits())
    year = (parse_condition("year>=2010"),)
    with busy(batcher, searcher):
        plain = submit(batcher, "a red circle")
        caption = submit(batcher, "a red circle", kind="caption")
        late = [Ask(Query(text=f"a red {shape}"), 3, "image", year) for shape in SHAPES]
        like = Ask(Query(like=RED), 3, "image")
        for wanted in (*late, like):
            batcher.submit(wanted)
    assert found(plain)[0] == RED
    assert found(caption)[0] == f"{RED}:0"
    assert all(int(h.item.metadata["year"]) >= 2010 for w in late for h in w.answer.result(5).hits)
    assert RED not in found(like)
    assert of(searcher).batches == [1, 6], "more like this needs no model"
    assert of(searcher).index.engine.searches == [1, 1, 1, 4, 1]
    batcher.close()


def test_a_request_that_was_cancelled_is_left_out() -> None:
    searcher = make_searcher()
    batcher = Batcher(searcher, Limits())
    with busy(batcher, searcher) as first:
        gone, stays = submit(batcher, "gone"), submit(batcher, "a blue ring")
        assert gone.answer.cancel()
        assert not first.answer.cancel(), "too late"
    assert "blue ring" in found(stays)[0]
    assert of(searcher).batches == [1, 1]
    batcher.close()


def test_only_the_request_at_fault_gets_the_error() -> None:
    searcher = make_searcher()
    batcher = Batcher(searcher, Limits())
    with busy(batcher, searcher):
        good, bad, other = (
            submit(batcher, text) for text in ("a red circle", "fail", "a blue ring")
        )
    assert found(good)[0] == RED
    assert "blue ring" in found(other)[0]
    with pytest.raises(RuntimeError, match="out of memory"):
        bad.answer.result(5)
    assert found(submit(batcher, "a red circle"))[0] == RED, "the thread goes on"
    batcher.close()


def test_the_queue_is_bounded_and_the_thread_ends() -> None:
    searcher = make_searcher()
    batcher = Batcher(searcher, Limits(queue=2))
    with busy(batcher, searcher):
        waiting = [submit(batcher, "second"), submit(batcher, "third")]
        assert len(batcher) == 2
        with pytest.raises(queue.Full):
            submit(batcher, "fourth")
    own = batcher._thread
    assert own
    batcher.close()
    assert all(wanted.answer.done() for wanted in waiting)
    assert own not in threading.enumerate()
    assert found(submit(batcher, "a red circle"))[0] == RED, "another thread begins"
    batcher.close()


@pytest.mark.slow
def test_a_full_server_says_so() -> None:
    searcher = make_searcher()
    app = make_app([searcher], Limits(queue=3, batch=1))
    with busy(app.state.desk.batchers["shapes"], searcher):
        threading.Timer(1.0, of(searcher).gate.set).start()
        answers = ask(app, *[("GET", "/api/search", {"params": {"q": "red"}})] * 12)
    assert sorted(answered(answers)) == [200] * 3 + [503] * 9
    refused = [answer for answer in answers if answer.status_code == 503]
    assert all(answer.headers["retry-after"] == "1" for answer in refused)
    assert "too many requests" in sentence(refused[0], 503)
    assert keys(get(app, "/api/search", q="a red circle"))[0] == RED


def test_a_server_that_is_too_slow_says_so() -> None:
    searcher = make_searcher()
    app = make_app([searcher], Limits(seconds=0.1))
    with busy(app.state.desk.batchers["shapes"], searcher):
        answer = get(app, "/api/search", q="a red circle")
        assert sentence(answer, 503).startswith("no answer within 0.1 seconds")
        assert answer.headers["retry-after"] == "1"


def test_hundreds_at_once_get_their_own_answers() -> None:
    searcher = make_searcher(slow=0.01)
    app = make_app([searcher])
    texts = [f"a {colour} {shape}" for colour in COLOURS for shape in SHAPES] * 10
    answers = ask(app, *[("GET", "/api/search", {"params": {"q": text, "k": 1}}) for text in texts])
    for text, answer in zip(texts, answers, strict=True):
        assert answer.json()["hits"][0]["text"].startswith(text)
    assert sum(of(searcher).batches) == len(texts)
    assert len(of(searcher).batches) < len(texts) / 8


def test_a_client_that_hangs_up_is_not_searched_for() -> None:
    searcher = make_searcher()
    app = make_app([searcher])
    batcher = app.state.desk.batchers["shapes"]
    with running(app) as address:
        place = urlsplit(address)

        def send(text: str) -> socket.socket:
            client = socket.create_connection((place.hostname, place.port), timeout=5)
            client.sendall(f"GET /api/search?q={text} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            return client

        with busy(batcher, searcher):
            gone, stays = send("gone"), send("stays")
            wait_until(lambda: len(batcher) == 2)
            gone.close()
            wait_until(lambda: sum(ask.answer.cancelled() for ask in batcher._waiting.queue) == 1)
        assert stays.recv(12) == b"HTTP/1.1 200"
        stays.close()
    assert of(searcher).batches == [1, 1]


def wait_until(met: Callable[[], bool]) -> None:
    until = time.monotonic() + 5
    while not met():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_hits_are_those_of_the_engine(app: FastAPI) -> None:
    """A batch cuts to the k of each request what was searched for the largest."""
    small, large = ask(
        app, *[("GET", "/api/search", {"params": {"q": "red", "k": k}}) for k in (2, 40)]
    )
    assert keys(small) == keys(large)[:2]
    searcher = make_searcher()
    hits: list[Hit] = searcher.search([Query(text="red")], 40)[0]
    assert keys(large) == [hit.item.key for hit in hits]
