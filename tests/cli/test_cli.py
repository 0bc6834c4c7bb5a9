"""The command line as a user meets it: its output and its exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import here, in_a_process, refused
from rich.console import Console
from rich.progress import Progress, ProgressColumn
from small_runs import small_recipe
from typer.testing import CliRunner

import gradspace as gs
from gradspace.cli import app, shared
from gradspace.cli.analyse import objective_to_draw
from gradspace.runs.folder import create_run


@pytest.fixture
def score_file(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    ids = torch.arange(12)
    path = tmp_path / "scores.safetensors"
    gs.save_scores(path, torch.rand(12, 24), ids, ids.repeat_interleave(2))
    return path


@pytest.mark.slow
def test_help_and_version() -> None:
    command = [sys.executable, "-m", "gradspace", "--version"]
    assert subprocess.run(command, capture_output=True, text=True).stdout.strip() == gs.__version__
    for arguments in ([], ["analyse"], ["analyse", "cocos"], ["analyse", "diagram"]):
        shown = CliRunner().invoke(app, [*arguments, "--help"], prog_name="gradspace")
        assert shown.exit_code == 0
        assert "Usage: gradspace" in shown.output


def test_cocos_of_a_score_file(score_file: Path) -> None:
    shown = here("analyse", "cocos", score_file, "--objective", "triplet-hard", "--json")
    counts = json.loads(shown.stdout)["triplet-hard"]
    assert counts["image_to_text"]["per_query"] == {"mean": 1, "std": 0}
    assert set(counts) == {"image_to_text", "text_to_image"}
    table = here("analyse", "cocos", score_file, "--batch-size", "4")
    assert "±" in table.stdout
    assert "smooth-ap" in table.stdout
    counted = []
    for options in (["--epsilon", "0.1"], ["--convention", "icr"]):
        shown = here("analyse", "cocos", score_file, "--objective", "nt-xent", "--json", *options)
        counted.append(json.loads(shown.stdout)["nt-xent"]["image_to_text"])
    assert counted[0]["per_batch"] == counted[1]["per_batch"], "0.1 is 0.01 / temperature"
    weights = [c["positive_weight"]["mean"] for c in counted]
    assert weights[0] == pytest.approx(weights[1] / 0.1)


@pytest.mark.slow
def test_diagrams_are_written_as_png_and_pdf(score_file: Path, tmp_path: Path) -> None:
    arguments = ["circle/sigmoid-ms", "nt-xent", "constant/constant"]
    shown = here("analyse", "diagram", *arguments, "--scores", score_file, "--out", tmp_path / "d")
    assert shown.returncode == 0, shown.stderr
    assert (tmp_path / "d.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "d.pdf").read_bytes().startswith(b"%PDF")


def test_a_run_is_drawn_by_its_objective_with_its_parameters(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", small_recipe(objective={"name": "smooth", "p1": -3.0}))
    assert objective_to_draw(str(run.folder)) == gs.objective("smooth", p1=-3.0)
    assert objective_to_draw("smooth") == gs.objective("smooth")


def test_objectives_are_listed() -> None:
    shown = here("analyse", "objectives", "--json")
    assert {info["name"] for info in json.loads(shown.stdout)} == {
        o.name for o in gs.list_objectives()
    }
    assert {info["reduction"] for info in json.loads(shown.stdout)} == {"sum", "mean"}
    told = here("analyse", "objectives").stdout
    assert "GOAL eq. 8" in told
    assert "Yi et al. 2014, eq. 10; GOAL eq. 11; mean over the queries" in told
    assert told.splitlines()[-1].startswith("Sums and means are as published. They make gradients")


@pytest.mark.slow
def test_errors_are_one_sentence_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.safetensors").write_bytes(b"not a tensor file")
    cases = {
        ("analyse", "diagram", "circle/sigmod"): "did you mean 'circle/sigmoid'",
        (
            "analyse",
            "cocos",
            "nowhere.safetensors",
        ): "nowhere.safetensors does not exist: expected",
        ("analyse", "cocos", "broken.safetensors"): "is not a complete safetensors file",
        ("analyse", "run", "nowhere", "--convention", "icq"): "convention must be 'gradient' or",
    }
    for arguments, message in cases.items():
        assert message in refused(*arguments)
    failed = in_a_process(*arguments, cwd=tmp_path)
    assert failed.returncode == 1
    assert message in failed.stderr
    assert len(failed.stderr.strip().splitlines()) == 1
    assert "Traceback" in here(*arguments, "--debug").stderr
    assert here("analyse", "nonsense").returncode == 2


def test_the_time_left_is_estimated_anew_for_a_second_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where two models of an ensemble score the same pairs, one after the other."""
    now, bars = [0.0], list[Progress]()
    console = Console(file=StringIO(), force_terminal=True, get_time=lambda: now[0])
    monkeypatch.setattr(shared, "errors", console)

    def bar(*columns: ProgressColumn, **settings: Any) -> Progress:
        bars.append(Progress(*columns, **settings))
        return bars[0]

    monkeypatch.setattr(shared, "Progress", bar)
    with shared.progress_bar("scoring") as progress:
        for total, last in ((40, 40), (40, 20)):
            for done in range(1, last + 1):
                now[0] += 1
                progress(done, total)
        assert bars[0].tasks[0].time_remaining == pytest.approx(20, abs=2)


def test_what_is_piped_is_not_wrapped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    line = "wrote " + "/a/long/path" * 20
    shared.Output().print(line)
    assert capsys.readouterr().out == f"{line}\n"
    monkeypatch.setenv("COLUMNS", "40")
    shared.Output().print(line)
    assert max(map(len, capsys.readouterr().out.splitlines())) == 40


def test_output_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    failed = here("analyse", "diagram", "circle/linear", "--out", tmp_path / "file" / "d")
    assert failed.returncode == 1
    assert "Traceback" not in failed.stderr
