"""The command line, as a process or in this one: most of a process of its own is importing."""

from __future__ import annotations

import subprocess
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import copied

from gradspace.cli import _run

Done = subprocess.CompletedProcess[str]
"""Exit code, stdout and stderr."""


def in_a_process(*arguments: str | Path, cwd: Path | None = None) -> Done:
    process = copied.start(*arguments, cwd=cwd)
    out, errors = process.communicate(timeout=300)
    return subprocess.CompletedProcess(arguments, process.returncode or 0, out, errors)


def here(*arguments: str | Path) -> Done:
    """Run a command within this process."""
    given, out, errors = list(map(str, arguments)), StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        try:
            code = _run(given)
        except SystemExit as leaving:
            code = leaving.code
    return subprocess.CompletedProcess(given, int(code or 0), out.getvalue(), errors.getvalue())


def refused(*arguments: str | Path) -> str:
    """The one sentence that a command prints, and nothing else."""
    done = here(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    return line
