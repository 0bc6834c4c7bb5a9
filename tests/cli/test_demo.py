"""The demo, on less data: trains, compares, counts, reports, and does not train twice."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from small_runs import DATA, MODEL

from gradspace.cli import demo
from gradspace.comparison.recipe import Comparison
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
    assert "finished" in shown[0]
    assert "finished" not in shown[1], "what is trained is kept"
    searched = [tmp_path / "search" / name for name in ("triplet", "circle-sigmoid-ms")]
    assert f"gradspace serve {searched[0]} {searched[1]}" in shown[0].replace("\n", "")
    [hits] = open_searcher(searched[1]).search([Query("a red ball")], 3)
    assert len(hits) == 3
    page = (tmp_path / "report.html").read_text()
    assert "circle/sigmoid-ms" in page
    monkeypatch.setattr(demo, "demo_comparison", lambda: small(epochs=2))
    with pytest.raises(ValueError, match="was trained by another recipe"):
        demo.run_demo(tmp_path, Console(file=io.StringIO()))
