from __future__ import annotations

import pytest
from samples import NAMES, Batch, random_batch


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    """Every registered objective."""
    return str(request.param)


@pytest.fixture
def batch() -> Batch:
    return random_batch


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests share one cache of built-in data, and leave the user's alone."""
    monkeypatch.setenv("GRADSPACE_CACHE", str(tmp_path_factory.getbasetemp().parent / "cache"))
