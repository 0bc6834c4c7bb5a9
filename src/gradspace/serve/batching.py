"""Batching: requests that arrive together share a batch of the model and a search of the index."""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from gradspace.indexes.contract import Hit, Kind
from gradspace.indexes.searcher import Query, Searcher
from gradspace.indexes.where import Condition
from gradspace.serve.limits import Limits


@dataclass(frozen=True)
class Searched:
    """Answer to one request."""

    hits: list[Hit]
    unknown_words: list[str]
    """Words of the query that are unknown to the model."""


@dataclass(frozen=True, eq=False)
class Ask:
    """One request, and the future of its answer."""

    query: Query
    k: int
    kind: Kind
    where: tuple[Condition, ...] = ()
    answer: Future[Searched] = field(default_factory=Future)


class Batcher:
    """A thread that embeds and searches for all requests to an index.

    Cancelled requests are left out. If a batch fails, each of its requests is retried alone, so
    that only the one at fault gets the error.
    """

    def __init__(
        self, searcher: Searcher, limits: Limits, watch: Callable[[int], None] = lambda size: None
    ) -> None:
        self._searcher = searcher
        self._limits = limits
        self._watch = watch
        self._waiting: queue.Queue[Ask | None] = queue.Queue(limits.queue)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        """Number of waiting requests."""
        return self._waiting.qsize()

    def submit(self, ask: Ask) -> Future[Searched]:
        """Queue a request; raises queue.Full if too many are waiting already."""
        self._waiting.put_nowait(ask)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="batcher", daemon=True)
                self._thread.start()
        return ask.answer

    def close(self, seconds: float = 1.0) -> None:
        """End the thread; if it stays busy for longer, it ends with the process."""
        with self._lock:
            if self._thread is None:
                return
            try:
                self._waiting.put(None, timeout=seconds)
            except queue.Full:
                return
            self._thread.join(seconds)
            self._thread = None

    def _work(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch, goes_on = self._gather(first)
            running = [ask for ask in batch if ask.answer.set_running_or_notify_cancel()]
            if running:
                self._watch(len(running))
                self._answer(running)
            if not goes_on:
                return

    def _gather(self, first: Ask) -> tuple[list[Ask], bool]:
        """Collect the requests of a batch, and whether more may follow."""
        batch = [first]
        until = time.monotonic() + self._limits.batch_wait
        while len(batch) < self._limits.batch:
            try:
                ask = self._waiting.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if ask is None:
                return batch, False
            batch.append(ask)
        return batch, True

    def _answer(self, batch: Sequence[Ask]) -> None:
        try:
            answers = self._search(batch)
        except Exception as error:
            if len(batch) == 1:
                batch[0].answer.set_exception(error)
                return
            for ask in batch:
                self._answer([ask])
        else:
            for ask, answer in zip(batch, answers, strict=True):
                ask.answer.set_result(answer)

    def _search(self, batch: Sequence[Ask]) -> list[Searched]:
        """Embed all queries together, then search in groups of equal kind and conditions."""
        to_embed = [number for number, ask in enumerate(batch) if not ask.query.like]
        vectors = self._searcher.embed([batch[n].query for n in to_embed]) if to_embed else None
        row = {number: row for row, number in enumerate(to_embed)}
        groups: dict[tuple[bool, Kind, tuple[Condition, ...]], list[int]] = defaultdict(list)
        for number, ask in enumerate(batch):
            groups[number in row, ask.kind, ask.where].append(number)
        answers: dict[int, list[Hit]] = {}
        for (embedded, kind, where), numbers in groups.items():
            most = max(batch[number].k for number in numbers)
            if embedded:
                assert vectors is not None
                own = vectors[[row[number] for number in numbers]]
                found = self._searcher.index.find(own, most, kind, where)
            else:
                found = self._searcher.search([batch[n].query for n in numbers], most, kind, where)
            for number, hits in zip(numbers, found, strict=True):
                answers[number] = hits[: batch[number].k]
        return [
            Searched(answers[number], self._searcher.unknown_words(ask.query))
            for number, ask in enumerate(batch)
        ]
