"""Commands that are refused, run in this process: most of a process of their own is importing."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradspace.cli import _run


class Refused:
    """The one sentence that a command prints, and nothing else."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: str | Path) -> str:
        self.capsys.readouterr()
        assert _run([str(argument) for argument in arguments]) == 1
        printed = self.capsys.readouterr()
        assert printed.out == ""
        [line] = printed.err.splitlines()
        return line
