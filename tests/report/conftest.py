"""Three runs of seconds, trained once, and the page of what they found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import open_data, small_recipe, train_small

from gradspace.comparison.compare import find_out
from gradspace.comparison.entries import Entry, load_entry
from gradspace.comparison.tables import View
from gradspace.data.dataset import Dataset, digest
from gradspace.report import write_report
from gradspace.runs.finish import evaluate_run
from gradspace.runs.numbers import RECALLS

CPU = torch.device("cpu")
RUNS = (("triplet", 0), ("nt-xent", 0), ("nt-xent", 1))
TRAINING = {"epochs": 2, "batch_size": 32, "learning_rate": 2e-3, "track_every": 4}


@dataclass(frozen=True)
class Reported:
    """What a report was made of, and where it is."""

    entries: list[Entry]
    path: Path


@pytest.fixture(scope="session")
def _shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The cache of the built-in data that single tests use too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADSPACE_CACHE", str(tmp_path_factory.getbasetemp().parent / "cache"))
        yield


@pytest.fixture(scope="session")
def entries(tmp_path_factory: pytest.TempPathFactory, _shared_cache: None) -> list[Entry]:
    """triplet with one seed, nt-xent with two."""
    folder = tmp_path_factory.mktemp("runs")
    found = []
    for objective, seed in RUNS:
        run = train_small(
            folder / f"{objective}-{seed}",
            objective={"name": objective},
            training=TRAINING,
            seed=seed,
        )
        evaluate_run(run, open_data(run.recipe()), CPU)
        found.append(load_entry(run, "scenes", "VSE++", objective, seed, run.results("test")))
    return found


@pytest.fixture(scope="session")
def reported(
    entries: list[Entry], tmp_path_factory: pytest.TempPathFactory, _shared_cache: None
) -> Reported:
    path = tmp_path_factory.mktemp("page") / "report.html"
    report(path, entries, notes=["A note."], failed=["triplet, seed 1: out of memory"])
    return Reported(entries, path)


@pytest.fixture(scope="session")
def data(_shared_cache: None) -> Dataset:
    """What the runs were trained on."""
    return open_data(small_recipe())


def report(path: Path, entries: Sequence[Entry], title: str = "Small", **more: Any) -> str:
    """Write a report; returns the page."""
    findings = find_out(View(title, (*RECALLS, "rsum")), entries)
    write_report(path, title, entries, findings, device=CPU, today=date(2025, 1, 2), **more)
    return path.read_text(encoding="utf-8")


def judged_on(entries: Sequence[Entry], data: Dataset) -> list[Entry]:
    """Copy of the runs whose results name another dataset."""
    test = data.splits["test"]
    name = digest(test.image_names, test.captions)
    return [replace(entry, results=replace(entry.results, digest=name)) for entry in entries]
