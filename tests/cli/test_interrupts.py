"""Ctrl-C at any moment: one sentence, exit code 130, no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import copied
import pytest
from commands import here

from gradspace import interrupts
from gradspace.cli import evaluation

PRESSED = """
import os, signal, sys

class Pressed:
    def find_spec(self, name, *rest):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Pressed())
sys.argv = ["gradspace", *{arguments}]
from gradspace.__main__ import main
main()
"""
IN_A_DESTRUCTOR = """
import gradspace.__main__

class Last:
    def __del__(self):
        raise KeyboardInterrupt

Last()
print("went on")
"""

IN_AN_EXEC = """
import gradspace.__main__
from gradspace import cli

def interrupted(arguments):
    try:
        exec("raise KeyboardInterrupt")
    except KeyboardInterrupt:
        return 130

cli._run = interrupted
cli.main()
"""

WHILE_PYTHON_ENDS = """
import os, signal, sys
from gradspace.__main__ import main

class Last:
    def __del__(self, kill=os.kill, process=os.getpid(), number=signal.SIGINT):
        kill(process, number)

last = Last()
sys.argv = ["gradspace", "--version"]
main()
"""


def python(code: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("typer", ["--help"]),
        ("gradspace.cli", ["--version"]),
        ("torch", ["evaluate", "nowhere"]),
        ("gradspace.runs.evaluate", ["evaluate", "nowhere"]),
        ("numpy", ["train", "--epochs", "3"]),
    ],
)
def test_while_modules_are_imported(module: str, arguments: list[str]) -> None:
    found = python(PRESSED.format(module=module, arguments=arguments))
    assert found == (130, "", "gradspace: stopped\n")


def test_where_none_can_be_raised() -> None:
    assert python(IN_A_DESTRUCTOR) == (130, "", "gradspace: stopped\n")


def test_in_the_middle_of_an_exec() -> None:
    """After which Python would end itself by the signal."""
    assert python(IN_AN_EXEC) == (130, "", "")


def test_while_python_ends() -> None:
    """A command that has done its work ends as it would have."""
    code, out, errors = python(WHILE_PYTHON_ENDS)
    assert (code, errors) == (0, "")
    assert out


def test_while_a_command_works(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluation, "evaluate", interrupted)
    done = here("evaluate", "run")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "gradspace: stopped\n")


def test_where_a_library_makes_another_error_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise ImportError("initialization failed")

    monkeypatch.setattr(evaluation, "evaluate", interrupted)
    monkeypatch.setattr(interrupts, "_came", True)
    done = here("evaluate", "run")
    assert (done.returncode, done.stderr) == (130, "gradspace: stopped\n")


def test_of_several_processes_one_speaks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        interrupts.say(f"stopped {rank}")
    assert capsys.readouterr().err == "gradspace: stopped 0\n"


def test_processes_that_are_started_do_not_hear_it() -> None:
    code = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    with interrupts.withheld():
        blocked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert blocked.stdout == "True\n"
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.2, 1, 2])
@pytest.mark.parametrize("command", ["train", "compare"])
def test_at_any_moment(command: str, seconds: float, tmp_path: Path) -> None:
    """As in a terminal, where all processes of a command get it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gradspace", *work_of(command, tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    press(process, seconds)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.5, 1.5, 4])
@pytest.mark.parametrize("command", ["train", "compare"])
def test_at_any_moment_after_imports(command: str, seconds: float, tmp_path: Path) -> None:
    press(copied.start(*work_of(command, tmp_path)), seconds)


def work_of(command: str, folder: Path) -> list[str]:
    given = ["icr-table1", "--jobs", "2"] if command == "compare" else []
    return [command, *given, "--data", "scenes", "--out", str(folder)]


def press(process: subprocess.Popen[str] | copied.Copy, seconds: float) -> None:
    while os.getpgid(process.pid) != process.pid:
        time.sleep(0.01)
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    [line] = errors.splitlines()
    assert line.startswith("gradspace: stopped")
