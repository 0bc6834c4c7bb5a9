"""`make test` on machines with and without Chromium, and what it says of tests it skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A checkout in which everything is installed, and an apt-get that cannot install anything."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    for name in ("python", "pytest"):
        write_program(tmp_path / ".venv" / "bin" / name, "echo pytest ran")
    for name in ("installed", "installed-dev"):
        (tmp_path / ".venv" / name).touch()
    write_program(tmp_path / "path" / "apt-get", f"echo asked >> {tmp_path}/asked; exit 1")
    for name in ("make", "sh", "touch"):
        program = shutil.which(name)
        assert program is not None
        (tmp_path / "path" / name).symlink_to(program)
    return tmp_path


def write_program(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def make_test(folder: Path) -> str:
    environment = {"PATH": str(folder / "path")}
    command = ["make", "--no-print-directory", "test"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def times_asked(folder: Path) -> int:
    log = folder / "asked"
    return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.mark.parametrize("there", ["", "chromium", "chromedriver"])
def test_what_is_missing_of_a_browser_is_installed_or_tried_again(there: str, made: Path) -> None:
    if there:
        write_program(made / "path" / there, "")
    for times in (1, 2):
        said = make_test(made)
        assert "the tests of pages will be skipped" in said
        assert said.endswith("pytest ran\n")
        assert times_asked(made) == times


def test_nothing_is_installed_beside_a_browser_and_its_driver(made: Path) -> None:
    for name in ("chromium", "chromedriver"):
        write_program(made / "path" / name, "")
    assert make_test(made).endswith("pytest ran\n")
    assert times_asked(made) == 0


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["0", "2"])
def test_the_last_lines_say_what_was_skipped_and_why(processes: str, tmp_path: Path) -> None:
    (tmp_path / "test_whole.py").write_text("import pytest\npytest.importorskip('not_there')\n")
    needs = "@pytest.mark.skipif(True, reason='needs a page')\ndef test_{}(): pass\n"
    (tmp_path / "test_parts.py").write_text(
        "import pytest\n" + "".join(map(needs.format, "ab")) + "def test_c(): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "skipped", "-p", "no:cacheprovider", "-q"]
    done = subprocess.run(
        [*command, "-n", processes, tmp_path],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests")},
    )
    *_, title, first, second, outcome = done.stdout.splitlines()
    assert " NOT TESTED: 3 skipped" in title
    assert first == "    2  needs a page (test_parts.py)"
    assert second.startswith("    1  could not import 'not_there'")
    assert second.endswith("(test_whole.py)")
    assert outcome.startswith("1 passed, 3 skipped")
