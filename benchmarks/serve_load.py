"""`python -m benchmarks.serve_load INDEX`: a load test of the server with many clients.

Starts `gradspace serve INDEX` on this machine. Every client searches for one sentence after the
other for a given time, and compares each answer with the one given to a single client beforehand:
answers that are lost, or belong to another request, are counted. The bare model's time for a full
batch is measured in this process before the server is started.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode, urlsplit

import numpy as np
import typer

from gradspace.indexes.contract import Kind
from gradspace.indexes.searcher import Query, Searcher, open_searcher
from gradspace.processes import choose_device
from gradspace.serve.limits import Limits

WORDS = ("dog", "child", "red", "water", "two", "snow", "street", "ball", "grass", "jumping")
SENTENCES = tuple(f"a {one} and a {other}" for one in WORDS for other in WORDS if one != other)
TOLERANCE = 1e-3
"""Tolerance of a sentence's scores, which depend slightly on the batch it is embedded in."""
PATIENCE = 30.0
"""Seconds after which an answer counts as lost."""


@dataclass
class Load:
    """Answers that many clients received."""

    seconds: list[float] = field(default_factory=list)
    """Seconds of each right answer."""
    refused: int = 0
    """Requests told to retry later, which is a valid answer."""
    wrong: int = 0
    lost: int = 0
    lasted: float = 0.0

    def percentile(self, percent: float) -> float:
        return float(np.percentile(self.seconds, percent)) if self.seconds else float("nan")


async def put_load(
    address: str, sentences: Sequence[str], clients: int, seconds: float, k: int = 10
) -> Load:
    """Run `clients`, each with its own connection, for `seconds`."""
    alone = {text: (await ask(address, [text], k))[0] for text in sentences}
    if len({json.dumps(hits) for _, hits in alone.values()}) < len(sentences):
        raise ValueError(
            "two sentences have the same answer, so that mixed-up answers would go unnoticed: use "
            "an index with more items"
        )
    load = Load()
    started = time.monotonic()
    until = started + seconds
    await asyncio.gather(
        *(_client(address, sentences, alone, n, until, k, load) for n in range(clients))
    )
    load.lasted = time.monotonic() - started
    return load


async def _client(
    address: str,
    sentences: Sequence[str],
    alone: dict[str, tuple[int, Any]],
    number: int,
    until: float,
    k: int,
    load: Load,
) -> None:
    at = number
    while time.monotonic() < until:
        try:
            async with Connection(address) as connection:
                while time.monotonic() < until:
                    text = sentences[at % len(sentences)]
                    at += 1
                    started = time.monotonic()
                    status, hits = await asyncio.wait_for(connection.search(text, k), PATIENCE)
                    if status == 503:
                        load.refused += 1
                        await asyncio.sleep(0.1)
                    elif status == 200 and same(hits, alone[text][1]):
                        load.seconds.append(time.monotonic() - started)
                    else:
                        load.wrong += 1
        except (OSError, EOFError, TimeoutError):
            load.lost += 1
            await asyncio.sleep(0.1)


def same(hits: list[tuple[str, float]], others: list[tuple[str, float]]) -> bool:
    """Whether both have the same items, except for those with equal scores within tolerance."""
    if len(hits) != len(others):
        return False
    scores = [np.array([score for _, score in each]) for each in (hits, others)]
    if len(hits) and np.abs(scores[0] - scores[1]).max() > TOLERANCE:
        return False
    known = dict(others)
    last = others[-1][1] if others else 0.0
    return all(abs(score - known.get(key, last)) <= TOLERANCE for key, score in hits)


async def ask(address: str, sentences: Sequence[str], k: int) -> list[tuple[int, Any]]:
    async with Connection(address) as connection:
        return [await connection.search(text, k) for text in sentences]


class Connection:
    """Minimal HTTP/1.1 client, cheap enough to leave the machine to the server."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._host, self._port = str(parts.hostname), parts.port or 80

    async def __aenter__(self) -> Connection:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def search(self, text: str, k: int) -> tuple[int, list[tuple[str, float]]]:
        """Search, and return the status with key and score of every hit."""
        path = f"/api/search?{urlencode({'q': text, 'k': k})}"
        self._writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
        if length is None:
            raise EOFError("an answer without Content-Length")
        body = json.loads(await self._reader.readexactly(int(length[1])))
        return int(head.split()[1]), [(hit["key"], hit["score"]) for hit in body.get("hits", [])]


def batch_seconds(searcher: Searcher, sentences: Sequence[str], k: int = 10) -> float:
    """Measure the median time of the bare model and its index for a full batch."""
    size = Limits().batch
    batch = [Query(text=sentences[n % len(sentences)]) for n in range(size)]
    kind: Kind = "image" if "image" in searcher.index.kinds else "caption"
    taken = []
    for _ in range(12):
        started = time.perf_counter()
        searcher.index.engine.search(searcher.embed(batch), k, kind)
        taken.append(time.perf_counter() - started)
    return float(np.median(taken[2:]))


def sentences_for(searcher: Searcher) -> list[str]:
    """Choose sentences in words that the model knows, if the collection has captions."""
    captions = searcher.index.collection.split.captions
    return list(dict.fromkeys(captions))[: len(SENTENCES)] or list(SENTENCES)


def told(load: Load, clients: int, batch: float) -> str:
    right = len(load.seconds)
    p50, p99 = load.percentile(50), load.percentile(99)
    return (
        f"{clients} clients for {load.lasted:.1f} s: {right} right answers, {load.wrong} wrong, "
        f"{load.lost} lost, {load.refused} refused\n"
        f"{right / load.lasted:.0f} answers/s, p50 {1e3 * p50:.0f} ms, p99 {1e3 * p99:.0f} ms; "
        f"the bare model takes {1e3 * batch:.1f} ms for {Limits().batch}: "
        f"p99 is {p99 / batch:.1f} times that"
    )


def main(
    index: Annotated[Path, typer.Argument(help="Folder of an index.")],
    clients: Annotated[int, typer.Option(min=1, max=1000)] = 200,
    seconds: Annotated[float, typer.Option(min=0.1, max=600)] = 60,
    device: Annotated[str | None, typer.Option()] = None,
) -> None:
    """Start a server on this machine and put it under load."""
    searcher = open_searcher(index, choose_device(device))
    sentences = sentences_for(searcher)
    batch = batch_seconds(searcher, sentences)
    command = [sys.executable, "-m", "gradspace", "serve", str(index), "--port", "0"]
    if device:
        command += ["--device", device]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            address = re.search(r"http://\S+:\d+", server.stdout.readline())
            if address is None:
                raise SystemExit("the server did not start")
            load = asyncio.run(put_load(address[0], sentences, clients, seconds))
        finally:
            server.terminate()
    print(told(load, clients, batch))
    if load.wrong or load.lost:
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)
