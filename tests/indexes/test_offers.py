"""What is offered of an index is what it can do, with queries that it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from indexes.made_photos import write_photos
from small_runs import train_small

from gradspace.indexes.make import index
from gradspace.indexes.offers import Offer, make_offer
from gradspace.indexes.searcher import Query, Searcher, open_searcher
from gradspace.indexes.where import Value, parse_condition

CPU = torch.device("cpu")


def opened(model: Path, source: Path | None, out: Path, metadata: Path | None = None) -> Searcher:
    index(model, source, out=out, metadata=metadata, num_workers=0, device="cpu")
    return open_searcher(out, CPU)


def offered(searcher: Searcher) -> Offer:
    """The offer, of which every query finds something."""
    found = make_offer(searcher)
    for text in found.sentences:
        assert searcher.unknown_words(Query(text)) == []
        assert searcher.search([Query(text)], 1)[0]
    for condition in found.conditions:
        assert searcher.search([Query("a")], 1, where=[parse_condition(condition)])[0], condition
    return found


def test_a_run_on_features(tmp_path: Path) -> None:
    """Its regions are no grid, and its pictures all of one size: the demo's indexes."""
    run = train_small(tmp_path / "run", training={"epochs": 1})
    searcher = opened(run.folder, None, tmp_path / "index")
    found = offered(searcher)
    assert (found.reads_pictures, found.explains) == (False, False)
    captions = set(searcher.index.collection.split.captions)
    assert len(found.sentences) == 3
    assert all(text in captions or f"{text}." in captions for text in found.sentences)
    assert found.conditions == []
    assert searcher.unknown_words(Query("a Zebra's red zebra?")) == ["zebra's", "zebra"]


def test_a_run_that_explains(tmp_path: Path) -> None:
    run = train_small(tmp_path / "run", model={"name": "vse-infinity"}, training={"epochs": 1})
    searcher = opened(run.folder, None, tmp_path / "index")
    assert offered(searcher).explains
    other = train_small(tmp_path / "other", training={"epochs": 1})
    assert not open_searcher(tmp_path / "index", CPU, other.folder).explains


def test_an_explainer_that_reads_something_else(model: Path, photos: Path, tmp_path: Path) -> None:
    opened(model, photos, tmp_path / "index")
    run = train_small(tmp_path / "run", model={"name": "vse-infinity"}, training={"epochs": 1})
    assert not open_searcher(tmp_path / "index", CPU, run.folder).explains
    opened(run.folder, None, tmp_path / "regions")
    searcher = open_searcher(tmp_path / "regions", CPU, run.folder)
    assert searcher.explainer
    pooled = replace(searcher, explainer=replace(searcher.explainer, feature_shape=(128,)))
    assert searcher.explains
    assert not pooled.explains
    with pytest.raises(ValueError, match=r"reads features of shape \[128\], and those of"):
        pooled.explain("test-000000", "a ball")


def facts(folder: Path, rows: Mapping[str, Mapping[str, Value]]) -> Path:
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    lines = [",".join([path, *(str(row.get(n, "")) for n in names)]) for path, row in rows.items()]
    path = folder / "facts.csv"
    path.write_text("\n".join([",".join(["path", *names]), *lines]) + "\n")
    return path


def test_photos(model: Path, photos: Path, tmp_path: Path) -> None:
    found = offered(opened(model, photos, tmp_path / "plain"))
    assert (found.reads_pictures, found.explains) == (True, False)
    assert found.sentences == []
    assert found.conditions == ["folder=below"]
    rows: dict[str, dict[str, Value]] = {
        "000.png": {"year": 2019, "taken": "2019-05-01", "odd name": "a", "camera": "x"},
        "002.png": {"year": 2021, "taken": "2021-05-01", "odd name": "b", "camera": "y" * 99},
        "004.png": {"year": 2024, "taken": "2024-05-01", "odd name": "c", "camera": "y" * 99},
    }
    searcher = opened(model, photos, tmp_path / "index", facts(tmp_path, rows))
    expected = ["folder=below", "year>=2021", "taken>=2021"]
    assert offered(searcher).conditions == expected


@pytest.mark.parametrize("empty", [True, False])
def test_captions_without_pictures(model: Path, tmp_path: Path, empty: bool) -> None:
    said = ["ball", "a red ball", "a red zebra", "a " * 50]
    (tmp_path / "captions.txt").write_text("\n".join(said[:1] if empty else said))
    searcher = opened(model, tmp_path / "captions.txt", tmp_path / "index")
    found = make_offer(searcher)
    assert found.sentences == ([] if empty else ["a red ball"])
    assert (found.conditions, found.explains) == ([], False)


def test_an_index_of_nothing(model: Path, tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", range(1))
    searcher = opened(model, tmp_path / "photos", tmp_path / "index")
    searcher.index.engine.remove(list(searcher.index.engine.fingerprints()))
    assert make_offer(searcher) == Offer(True, False, [], [])
    assert np.isfinite(searcher.embed([Query("a")])).all()
