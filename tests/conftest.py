from __future__ import annotations

import gc
import os
from collections.abc import Iterator

# Importing makes millions of objects that stay: looking through them again and again for garbage
# takes a third of the time of importing.
gc.disable()

# One thread per test process, and per process that a test starts: two that share a core with others
# wait for each other and take twenty times as long. Must come before torch.
os.environ["OMP_NUM_THREADS"] = "1"
# A process that compiles a single kernel would first start a pool of processes that import torch.
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

import torch

if not torch.cuda.is_available():  # Triton then runs its kernels in Python
    os.environ["TRITON_INTERPRET"] = "1"

import copied
import pytest
from hypothesis import settings
from samples import NAMES, Batch, random_batch
from skipped import pytest_terminal_summary as pytest_terminal_summary

from gradspace.comparison import runner

# The same examples in every run: a change that fails is the change's fault.
settings.register_profile("steady", derandomize=True)
settings.load_profile("steady")


def pytest_collection_finish() -> None:
    gc.enable()


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    """Every registered objective."""
    return str(request.param)


@pytest.fixture
def batch() -> Batch:
    return random_batch


@pytest.fixture(autouse=True)
def workers_are_copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Comparisons in this process have no workers that import everything; no copy is left."""
    monkeypatch.setattr(runner, "PROCESSES", copied.COPIES)
    yield
    copied.end_all()


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests share one cache of built-in data, and leave the user's alone."""
    monkeypatch.setenv("GRADSPACE_CACHE", str(tmp_path_factory.getbasetemp().parent / "cache"))
