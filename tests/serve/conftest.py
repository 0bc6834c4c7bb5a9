"""Two small indexes, an application that serves them, and the same on a port of this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from serve.fakes import make_searcher

from gradspace.serve.app import make_app
from gradspace.serve.guard import OWN_HOSTS


@pytest.fixture(scope="session")
def app() -> Iterator[FastAPI]:
    searchers = [make_searcher(), make_searcher("other model", salt="2", leave_out="violet")]
    made = make_app(searchers, hosts=OWN_HOSTS)
    yield made
    made.state.desk.close()
