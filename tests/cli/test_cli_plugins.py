"""`--import`: a user's own weight, loss, model and reader, from training to search."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from commands import Done, in_a_process
from plugged import WEIGHT, once, times_executed, write_plugin

from gradspace import cli
from gradspace.tensor_files import save_tensors

Command = Callable[..., Done]

SMALL = ["--set", "model.width=16", "--set", "model.word_width=8"]
TRAIN = [
    "train",
    "--model",
    "mine",
    "--objective",
    "gaussian/linear",
    "--data",
    "small.few",
    *SMALL,
]
COMPARISON = """
title = "Mine"
seeds = 1
metrics = ["rsum"]
[datasets.few]
regions = { source = "small.few" }
[models.mine]
reads = "regions"
model = { name = "mine", width = 16, word_width = 8 }
[objectives."gaussian/linear"]
[objectives.wide]
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.chdir(tmp_path)
    write_plugin(tmp_path)
    (tmp_path / "small.few").write_text("64")
    return partial(once, tmp_path)


def refusal(done: Done) -> str:
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    return line


def test_every_command_has_the_option() -> None:
    for name in cli.COMMANDS:
        found = cli.load_command(name)
        for leaf in getattr(found, "commands", {"": found}).values():
            assert [one.opts for one in leaf.params].count(["--import"]) == 1, name


@pytest.mark.slow
def test_from_training_to_search(command: Command, tmp_path: Path) -> None:
    plugin = ["--import", "my_things.py"]
    assert "unknown model 'mine'" in refusal(command(*TRAIN, "--out", "run"))
    trained = command(*TRAIN, "--out", "run", *plugin)
    assert trained.returncode == 0, trained.stderr
    assert json.loads(Path("run/environment.json").read_text())["imports"] == ["my_things.py"]
    assert trained.stdout.endswith("gradspace evaluate run --import my_things.py\n")
    executed = times_executed(tmp_path)

    told = "was trained with --import my_things.py, and code is never imported automatically: read"
    for arguments in (["evaluate", "run"], ["train", "--resume", "run"], ["report", "run"]):
        assert told in refusal(command(*arguments))
    assert told in refusal(command("train", "run/recipe.toml", "--out", "again"))
    write_plugin(
        tmp_path / "part", "my_part.py", Path("my_things.py").read_text().split("\n@reader")[0]
    )
    assert "small.few has no known layout" in (
        line := refusal(command("evaluate", "run", "--import", "part/my_part.py"))
    )
    assert told in line
    assert times_executed(tmp_path) == executed

    Path("elsewhere").mkdir()
    Path("my_things.py").rename("elsewhere/my_things.py")
    plugin = ["--import", "elsewhere/my_things.py"]
    for arguments in (
        ["evaluate", "run"],
        ["train", "--resume", "run"],
        ["report", "run"],
        ["mine", "run"],
        ["index", "run", "--out", "index"],
        ["search", "index", "a dog"],
        ["analyse", "run", "run"],
    ):
        done = command(*arguments, *plugin)
        assert done.returncode == 0, (arguments, done.stderr)
    assert "train: 64 images" in command("data", "check", "small.few", *plugin).stdout


@pytest.mark.slow
def test_processes_of_a_comparison_know_what_the_command_does(
    command: Command, tmp_path: Path
) -> None:
    Path("mine.toml").write_text(COMPARISON)
    arguments = ("compare", "mine.toml", "--out", "out", "--import", "my_things.py")
    done = in_a_process(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "wide" in Path("out/mine.md").read_text()
    [*runs] = Path("out/runs").glob("few/mine/*/seed-0")
    assert len(runs) == 2
    assert "unknown model 'mine'" in refusal(command("compare", "mine.toml", "--out", "out"))
    assert "--import my_things.py" in refusal(command("report", "out"))
    assert command("report", "out", "--import", "my_things.py").returncode == 0


@pytest.mark.slow
def test_processes_that_share_a_batch_know_it_too(command: Command, tmp_path: Path) -> None:
    more = ("--out", "run", "--import", "my_things.py", "--processes", "2")
    done = in_a_process(*TRAIN, *more, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert times_executed(tmp_path) == 3, "by both, and the one that starts them"


def test_mistakes_are_one_sentence(command: Command, tmp_path: Path) -> None:
    assert "--import gone.py: " in refusal(command("analyse", "objectives", "--import", "gone.py"))
    write_plugin(tmp_path, "broken.py", WEIGHT.replace("gaussian", "circle"))
    line = refusal(command("analyse", "objectives", "--import", "broken.py"))
    assert "--import broken.py: 'circle' is already registered, by gradspace.objectives" in line
    assert line.endswith("(broken.py, line 12)")


def test_a_stranger_s_run_has_nothing_imported(command: Command, tmp_path: Path) -> None:
    """Neither by what it names, nor by files that lie in it or beside it."""
    run = tmp_path / "stranger"
    write_plugin(run, "my_things.py")
    write_plugin(run, "gradspace_plugins.py")
    (run / "recipe.toml").write_text('[objective]\nname = "gaussian/linear"\n')
    save_tensors(run / "best.safetensors", {}, {"feature_shape": [8]})
    imports = ["stranger/my_things.py", str(run / "my_things.py"), "my_things"]
    (run / "environment.json").write_text(json.dumps({"imports": imports}))
    for arguments in (
        ["evaluate", run],
        ["train", "--resume", run],
        ["train", run / "recipe.toml"],
        ["report", run],
        ["index", run, "--out", "index"],
        ["export", run, "--out", "model"],
        ["embed", run, "--out", "e.safetensors"],
        ["mine", run],
    ):
        assert "--import stranger/my_things.py" in refusal(command(*arguments)), arguments
    assert times_executed(run) == times_executed(tmp_path) == 0
