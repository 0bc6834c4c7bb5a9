"""Code of users: imported when it is named or installed, and never because a run says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from plugged import WEIGHT, forgotten, times_executed, write_plugin

import gradspace as gs
from gradspace import plugins
from gradspace.objectives import loss, pair_weight, triplet_weight
from gradspace.plugins import import_plugin, imported, not_repeated


@pytest.fixture(autouse=True)
def _forget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    with forgotten(tmp_path):
        yield


def test_a_file_registers_what_it_has_and_runs_once(tmp_path: Path) -> None:
    path = write_plugin(tmp_path)
    import_plugin("my_things.py")
    import_plugin(str(path))
    assert times_executed(tmp_path) == 1
    assert gs.objective("gaussian/linear", width=0.2).name == "gaussian/linear"
    assert gs.objective("wide").name == "wide"
    [info] = [one for one in gs.list_objectives() if one.name == "gaussian/constant"]
    assert info.source == "made up and GOAL eq. 9"
    assert "my_things.py" in imported(by_workers=True)


def test_a_file_imports_its_neighbours_and_hides_nothing(tmp_path: Path) -> None:
    write_plugin(tmp_path / "lib", "neighbour.py", WEIGHT)
    write_plugin(tmp_path / "lib", "json.py", "raise RuntimeError('never imported')")
    write_plugin(tmp_path / "lib", "mine.py", "import json\nimport neighbour\njson.dumps({})")
    import_plugin("lib/mine.py")
    assert gs.objective("gaussian/linear")
    assert "lib/mine.py" in imported(), "what registers is imported by what the user has named"


def test_a_module_is_given_by_its_name(tmp_path: Path) -> None:
    write_plugin(tmp_path / "mine", "__init__.py", "from mine import weights")
    write_plugin(tmp_path / "mine", "weights.py", WEIGHT)
    import_plugin("mine.weights")
    assert gs.objective("gaussian/linear")


RAISES = "import torch\n\ntorch.zeros(\n    2).reshape(3)\n"
TAKEN = """
from gradspace.objectives import pair_weight


@pair_weight("sigmoid", source="made up")
def sigmoid(p, n):
    "Another one."
"""


@pytest.mark.parametrize(
    ("given", "text", "message"),
    [
        ("gone.py", None, r"--import gone\.py: /.*/gone\.py does not exist"),
        ("lib/gone", None, r"--import lib/gone: /.*/lib/gone does not exist"),
        (".", None, r"--import \.: /.* is a folder: give a file"),
        ("gone", None, "--import gone: there is no module gone; give a file with its ending"),
        ("gone.too", None, "--import gone.too: there is no module gone; give a file with"),
        ("bad.py", "import nothing_here", r"ModuleNotFoundError: No module .* \(bad\.py, line 1\)"),
        ("bad.py", "a = (", r"'\(' was never closed \(bad\.py, line 1\)"),
        ("bad.py", RAISES, r"bad\.py: RuntimeError: shape .*\(bad\.py, line [34]\)"),
        ("bad.py", "import sys\nsys.exit()", "it exits the program: put what a script does under"),
        ("bad.py", TAKEN, r"'sigmoid' is already registered, by gradspace\.objectives\.pair_wei"),
        ("json.py", "a = 1", "another module is also called 'json': give the file another name"),
        (
            "my-things.py",
            "a = 1",
            "'my-things' is not a valid module name: give the file another name",
        ),
    ],
)
def test_what_cannot_be_imported(
    given: str, text: str | None, message: str, tmp_path: Path
) -> None:
    if text is not None:
        write_plugin(tmp_path, given, text)
    with pytest.raises(ValueError, match=message) as caught:
        import_plugin(given)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"--import {given}: ")


def test_a_slash_in_a_name_would_hide_a_cell_of_goal() -> None:
    for register in (loss, triplet_weight, pair_weight):
        with pytest.raises(ValueError, match="'circle/linear' contains a /, which separates"):
            register("circle/linear", source="made up")(type("Taken", (), {"__doc__": "Taken."}))


def record(folder: Path, imports: object) -> Path:
    (folder / "environment.json").write_text(json.dumps({"imports": imports}))
    return folder


def test_what_a_run_was_trained_with_is_named_and_not_imported(tmp_path: Path) -> None:
    write_plugin(tmp_path)
    record(tmp_path, ["my things.py", "elsewhere/\x1b[2Jother.py"])
    told = not_repeated(tmp_path)
    assert (
        r"--import 'my things.py' --import 'elsewhere/\x1b[2Jother.py', and code is never" in told
    )
    assert times_executed(tmp_path) == 0
    record(tmp_path, ["old/place/my_things.py"])
    assert "--import old/place/my_things.py" in not_repeated(tmp_path)
    import_plugin("my_things.py")
    assert not_repeated(tmp_path) == ""


@pytest.mark.parametrize("imports", [[], None, "text", [3], {"a": 1}])
def test_records_that_are_none(imports: object, tmp_path: Path) -> None:
    assert not_repeated(record(tmp_path, imports)) == ""
    (tmp_path / "environment.json").write_text("[]")
    assert not_repeated(tmp_path) == ""
    (tmp_path / "environment.json").write_text("{")
    assert not_repeated(tmp_path) == ""


def test_what_is_typed_in_a_session_or_a_script_is_not_imported_by_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for file, homes in (("train_mine.py", ["train_mine.py"]), (None, [])):
        monkeypatch.setattr(plugins, "_homes", {})
        monkeypatch.setattr(sys.modules["__main__"], "__file__", file, raising=False)

        def typed() -> None:
            """Defined in the program itself."""

        typed.__module__ = "__main__"
        plugins.admit("typed", typed, None)
        assert imported() == homes
        assert imported(by_workers=True) == []


def install(folder: Path, text: str) -> dict[str, str]:
    """A package with an entry point, as pip would leave it; the environment that has it."""
    write_plugin(folder, "my_package.py", text)
    about = folder / "my_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[gradspace.plugins]\nmine = my_package\n")
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def python(code: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)


@pytest.mark.slow
def test_an_installed_package_is_imported_where_its_names_are_asked_for(tmp_path: Path) -> None:
    environment = install(tmp_path, WEIGHT)
    known = (
        "import gradspace as gs, sys; gs.objective('triplet'); print('my_package' in sys.modules)"
    )
    assert python(known, environment).stdout == "False\n"
    done = python(
        "import gradspace as gs; print(gs.objective('gaussian/linear').name)", environment
    )
    assert done.stdout == "gaussian/linear\n"
    listed = subprocess.run(
        [sys.executable, "-m", "gradspace", "analyse", "objectives"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "gaussian/sigmoid-ms" in listed.stdout


@pytest.mark.slow
def test_an_installed_package_that_is_broken_is_named(tmp_path: Path) -> None:
    environment = install(tmp_path, "raise RuntimeError('no')")
    command = [sys.executable, "-m", "gradspace", "analyse", "objectives"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "gradspace: the plug-in 'mine' of the installed package my-package cannot be imported: "
        "RuntimeError: no (my_package.py, line 1); repair or uninstall that package\n"
    )
