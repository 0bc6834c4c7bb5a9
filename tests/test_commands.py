"""A printed command runs the gradspace that printed it, wherever that is."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gradspace import plugins
from gradspace.commands import command, pip_install


def install(folder: Path) -> Path:
    """A program that says what it is given, beside a Python."""
    folder.mkdir(parents=True)
    program = folder / "gradspace"
    program.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    program.chmod(0o755)
    return program


def said(printed: str) -> list[str]:
    """What a shell makes of a command that is pasted into it."""
    done = subprocess.run(["sh", "-c", printed], capture_output=True, text=True, check=True)
    return done.stdout.split("|")[:-1]


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A virtual environment in the current folder, which is not on the PATH."""
    install(tmp_path / ".venv" / "bin")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    return tmp_path


def test_a_program_that_is_not_on_the_path(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = command("serve", Path("my photos"), "it's")
    assert shlex.split(printed)[0] == ".venv/bin/gradspace"
    assert said(printed) == ["serve", "my photos", "it's"]
    (venv / "else").mkdir()
    monkeypatch.chdir(venv / "else")
    assert said(command("serve", "a")) == ["serve", "a"]
    assert Path(shlex.split(command("serve"))[0]).is_absolute()


def test_a_program_on_the_path(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{venv}/.venv/bin:/usr/bin:/bin")
    assert command("serve", "a") == "gradspace serve a"
    install(venv / "other")
    monkeypatch.setenv("PATH", f"{venv}/other:{venv}/.venv/bin:/usr/bin:/bin")
    assert command("serve", "a") == ".venv/bin/gradspace serve a", "another one comes first"


def test_no_program_beside_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert shlex.split(command("serve"))[1:] == ["-m", "gradspace", "serve"]


def test_pip_is_that_of_this_python(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["install", "gradspace[serve]"]
    assert shlex.split(pip_install(wanted[1])) == [".venv/bin/python", "-m", "pip", *wanted]
    pip = venv / ".venv" / "bin" / "pip"
    pip.write_text("#!/bin/sh\n")
    pip.chmod(0o755)
    monkeypatch.setenv("PATH", f"{pip.parent}:/usr/bin:/bin")
    assert shlex.split(pip_install(wanted[1])) == ["pip", *wanted]


def test_what_the_user_has_imported(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the command would not know the names that it is about."""
    monkeypatch.setattr(plugins, "_named", {"my weights.py": None, "more": None})
    given = ["evaluate", "a", "--import", "my weights.py", "--import", "more"]
    assert said(command("evaluate", "a")) == given
