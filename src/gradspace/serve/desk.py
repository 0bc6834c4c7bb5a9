"""Indexes of a server by name, and the handling of requests that wait for them."""

from __future__ import annotations

import asyncio
import queue
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeVar

import anyio
from anyio import to_thread
from fastapi import HTTPException, Request

from gradspace.data.image_files import leads_outside
from gradspace.indexes.contract import Item, Kind
from gradspace.indexes.offers import make_offer
from gradspace.indexes.searcher import Query, Searcher
from gradspace.runs.explain import Explanation
from gradspace.serve.batching import Ask, Batcher, Searched
from gradspace.serve.limits import Limits
from gradspace.serve.metrics import Metrics
from gradspace.serve.schemas import Options

T = TypeVar("T")
RETRY = {"Retry-After": "1"}
READING = 8
"""Number of threads that read items and pictures."""


class Desk:
    """Dispatches requests to their index, and returns answers or HTTP errors."""

    def __init__(self, searchers: Sequence[Searcher], limits: Limits, metrics: Metrics) -> None:
        if not searchers:
            raise ValueError("a server needs at least one index to search, got none")
        self.limits = limits
        self.searchers = dict(zip(_ids([s.index.name for s in searchers]), searchers, strict=True))
        self.batchers = {
            name: Batcher(searcher, limits, partial(metrics.batch, name))
            for name, searcher in self.searchers.items()
        }
        # Made before there are requests, as only one thread at a time may use the model.
        self.offers = {name: make_offer(searcher) for name, searcher in self.searchers.items()}
        self._pictures = anyio.Semaphore(limits.pictures_at_once)
        self._reading = anyio.CapacityLimiter(READING)
        self._explaining = anyio.CapacityLimiter(1)

    def close(self) -> None:
        for batcher in self.batchers.values():
            batcher.close()

    def name(self, index: str) -> str:
        """Resolve the index name, or answer 404."""
        name = index or next(iter(self.searchers))
        if name not in self.searchers:
            raise HTTPException(
                404, f"there is no index {name[:100]!r}; use one of {', '.join(self.searchers)}"
            )
        return name

    def kind(self, index: str, wanted: Kind | None) -> Kind:
        kinds = self.searchers[index].index.kinds
        if wanted is None:
            return "image" if "image" in kinds else "caption"
        if wanted not in kinds:
            raise HTTPException(422, f"the index {index} holds no {wanted}s")
        return wanted

    async def search(self, request: Request, query: Query, options: Options) -> Searched:
        """Search in a batch with other requests; errors are those of this request alone."""
        index = self.name(options.index)
        ask = Ask(query, options.k, self.kind(index, options.kind), options.conditions)
        try:
            answer = self.batchers[index].submit(ask)
        except queue.Full as error:
            raise HTTPException(
                503, "too many requests are waiting: try again in a second", RETRY
            ) from error
        try:
            return await self._answered(request, answer)
        except ValueError as error:
            raise HTTPException(422, str(error)) from error

    async def _answered(self, request: Request, answer: Future[Searched]) -> Searched:
        """Wait for an answer; give up if time runs out or the client disconnects."""
        waiting = asyncio.wrap_future(answer)
        gone = asyncio.ensure_future(_gone(request))
        gone.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            both: set[asyncio.Future[Any]] = {waiting, gone}
            done, _ = await asyncio.wait(
                both, timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            gone.cancel()
            if not waiting.done():
                waiting.cancel()
        if waiting in done:
            return waiting.result()
        if gone in done:
            gone.result()
            raise HTTPException(499, "the client has disconnected")
        raise HTTPException(503, too_slow(self.limits), RETRY)

    async def item(self, index: str, key: str) -> Item:
        if "\0" not in key:
            found = await self.in_thread(self.searchers[index].index.engine.get, [key])
            if found[0] is not None:
                return found[0][0]
        raise HTTPException(404, no_item(index, key))

    async def file(self, index: str, key: str, read: Callable[[str], bytes | None]) -> bytes:
        """Read a file of an image; no key leads outside the index."""
        found = None
        if not leads_outside(key) and "\0" not in key:
            try:
                found = await self.in_thread(read, key)
            except KeyError:
                pass
            except ValueError as error:
                raise HTTPException(
                    404, f"the file of {key[:200]!r} is missing or broken"
                ) from error
        if found is None:
            raise HTTPException(404, no_item(index, key))
        return found

    async def explain(self, index: str, key: str, text: str) -> Explanation | None:
        """Explain one score at a time, which leaves the model free for searches."""
        explain = self.searchers[index].explain
        return await self.in_thread(explain, key, text, limiter=self._explaining)

    async def in_thread(
        self,
        function: Callable[..., T],
        *arguments: object,
        limiter: anyio.CapacityLimiter | None = None,
    ) -> T:
        with self._in_time():
            return await to_thread.run_sync(
                function, *arguments, abandon_on_cancel=True, limiter=limiter or self._reading
            )

    @asynccontextmanager
    async def place_for_a_picture(self) -> AsyncIterator[None]:
        """Wait until few enough pictures are in memory."""
        with self._in_time():
            await self._pictures.acquire()
        try:
            yield
        finally:
            self._pictures.release()

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        try:
            with anyio.fail_after(self.limits.seconds):
                yield
        except TimeoutError as error:
            raise HTTPException(503, too_slow(self.limits), RETRY) from error


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def no_item(index: str, key: str) -> str:
    return f"there is no such item in the index {index}: {key[:200]!r}"


def too_slow(limits: Limits) -> str:
    return f"no answer within {limits.seconds:g} seconds: try again when there is less load"


def _ids(names: Sequence[str]) -> list[str]:
    """Make unique ids that can be parts of an address."""
    ids: list[str] = []
    for name in names:
        plain = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "index"
        number = 1
        while (wanted := plain if number == 1 else f"{plain}-{number}") in ids:
            number += 1
        ids.append(wanted)
    return ids
