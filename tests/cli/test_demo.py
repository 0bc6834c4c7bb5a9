"""The demo, on less data: trains, compares, counts, reports, and does not train twice."""

from __future__ import annotations

import io
import shlex
import sys
from pathlib import Path

import pytest
from rich.console import Console
from small_runs import DATA, MODEL

from gradspace.cli import demo
from gradspace.comparison.recipe import Comparison
from gradspace.comparison.results import load_table
from gradspace.indexes.searcher import Query, open_searcher


def small(epochs: int = 1) -> Comparison:
    return Comparison.model_validate(
        {
            "title": "Small demo",
            "seeds": 1,
            "datasets": {"scenes": {"regions": DATA}},
            "models": {"VSE++": {"reads": "regions", "model": MODEL}},
            "objectives": {"triplet": {}, "circle/sigmoid-ms": {}},
            "recipe": {"training": {"epochs": epochs, "batch_size": 32, "track_every": 5}},
        }
    )


@pytest.mark.slow
def test_demo_compares_objectives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "demo_comparison", small)
    shown = []
    for _ in range(2):
        output = io.StringIO()
        demo.run_demo(tmp_path, Console(file=output, width=120))
        shown.append(output.getvalue())
    for expected in ("triplet", "circle/sigmoid-ms", "C^q", "image → text", "rsum", "report.html"):
        assert expected in shown[0].replace("\n", "")
    assert "not which objective is best on photos" in shown[0].replace("\n", " ")
    assert "finished" in shown[0]
    assert "finished" not in shown[1], "what is trained is kept"
    *_, last = shown[0].splitlines()
    program, serve, *searched = shlex.split(last)
    assert Path(program).name == "gradspace" or program == sys.executable
    results = {
        row.objective: row.value
        for row in load_table(tmp_path / "results.parquet")
        if row.metric == "rsum"
    }
    best = max(results, key=lambda name: results[name])
    assert serve == "serve"
    assert searched[0] == str(tmp_path / "search" / best.replace("/", "-"))
    assert {open_searcher(Path(folder)).index.name for folder in searched} == set(results)
    [hits] = open_searcher(Path(searched[0])).search([Query("a red ball")], 3)
    assert len(hits) == 3
    page = (tmp_path / "report.html").read_text()
    assert "circle/sigmoid-ms" in page
    monkeypatch.setattr(demo, "demo_comparison", lambda: small(epochs=2))
    with pytest.raises(ValueError, match="was trained with another recipe"):
        demo.run_demo(tmp_path, Console(file=io.StringIO()))
