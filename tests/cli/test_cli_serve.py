"""`gradspace serve`: starts, says where, and stops when asked to, with no request unanswered."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from gradspace.cli import app, serve

PROGRAM = """
import sys
from serve.fakes import make_searcher
from gradspace.cli import main, serve
slow = float(sys.argv.pop())
serve.open_searcher = lambda path, device, explain: make_searcher(path.name, slow=slow)
main()
"""


@contextmanager
def started(
    *arguments: str, slow: float = 0.0, **environment: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process of the command with searchers that are not real, and its address."""
    folders = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "serve", *arguments, "--port", "0", str(slow)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders), **environment},
    )
    assert process.stdout
    try:
        line = process.stdout.readline()
        address = re.fullmatch(r"serving on (http://\S+:\d+), Ctrl-C stops\n", line)
        assert address, line + (process.stderr.read() if process.stderr else "")
        yield process, address[1]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("stop", "arguments", "at", "stranger"),
    [
        (signal.SIGINT, ["one", "two"], "http://127.0.0.1:", 400),
        (signal.SIGTERM, ["one", "two", "--host", "0.0.0.0"], "http://127.0.0.1:", 200),
    ],
    ids=["this machine, SIGINT", "all machines, SIGTERM"],
)
@pytest.mark.slow
def test_it_serves_and_answers_requests_in_flight(
    stop: signal.Signals, arguments: list[str], at: str, stranger: int
) -> None:
    with started(*arguments, slow=1) as (process, address):
        assert address.startswith(at)
        told = httpx.get(f"{address}/api/indexes").json()
        assert [index["name"] for index in told] == ["one", "two"]
        health = httpx.get(f"{address}/health", headers={"Host": "stranger.example"})
        assert health.status_code == stranger
        asking, answers = ask_aside(address)
        process.send_signal(stop)
        said, errors = process.communicate(timeout=10)
        asking.join(5)
        assert answers[0].json()["hits"][0]["text"].startswith("a red circle")
        assert (process.returncode, said, errors) == (0, "", "")


def ask_aside(address: str) -> tuple[threading.Thread, list[httpx.Response]]:
    """A request in a thread, which the model is busy with, and where its answer will be."""
    answers: list[httpx.Response] = []

    def ask() -> None:
        answers.append(httpx.get(f"{address}/api/search?q=a+red+circle", timeout=30))

    asking = threading.Thread(target=ask)
    asking.start()
    until = time.monotonic() + 10
    while "gradspace_batch_size_count" not in httpx.get(f"{address}/metrics").text:
        assert time.monotonic() < until
        time.sleep(0.02)
    return asking, answers


@pytest.mark.slow
def test_it_opens_the_page(tmp_path: Path) -> None:
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {seen}.part\nmv {seen}.part {seen}\n')
    browser.chmod(0o755)
    with started("photos", "--open", BROWSER=f"{browser} %s") as (_, address):
        until = time.monotonic() + 10
        while not seen.exists() and time.monotonic() < until:
            time.sleep(0.05)
        assert seen.read_text() == address


@pytest.mark.slow
def test_a_model_that_does_not_come_back_does_not_keep_it() -> None:
    with started("photos", slow=60) as (process, address):
        asking, answers = ask_aside(address)
        process.send_signal(signal.SIGTERM)
        before = time.monotonic()
        _, errors = process.communicate(timeout=40)
        asking.join(5)
        assert time.monotonic() - before < 20, "a batch takes a minute"
        assert process.returncode == 0
        assert "Traceback" not in errors
        assert "stopping" in answers[0].json()["detail"]


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["serve", "nowhere", "--port", str(port)])
    assert result.exit_code == 1
    assert f"cannot listen on 127.0.0.1, port {port}" in str(result.exception)
    assert "--port" in str(result.exception)


def test_an_extra_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with (
        socket.socket() as unused,
        pytest.raises(ValueError, match=r"needs uvicorn.*gradspace\[serve\]"),
    ):
        serve.run_server([], unused, open_page=False)
