"""The code blocks and commands of the documentation do what they say."""

from __future__ import annotations

import re
import runpy
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from copied import Copy
from typer.testing import CliRunner

from gradspace.cli import app
from gradspace.comparison.builtin import builtin_file

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
REFERENCE = ROOT / "docs/reference"
GENERATED = {
    REFERENCE / f"{name}.md"
    for name in re.findall(
        r'^    \("(\w+)", \w+_page\)', (REFERENCE / "generate.py").read_text(), re.M
    )
}
"""Pages that exist on the site alone: tests/test_site.py follows links to them."""


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)


def run_program(program: str) -> None:
    warnings.simplefilter("error")
    Path("page.py").write_text(program)
    runpy.run_path("page.py", run_name="__main__")


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name_of)
@pytest.mark.slow
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    """All blocks of a page as one program, in a process of its own."""
    process = Copy(run_program, "\n".join(blocks(page, "python")), cwd=tmp_path)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors


def documented_commands() -> Iterator[str]:
    for page in PAGES:
        for block in blocks(page, "bash"):
            lines = re.sub(r"\\\n\s*", "", block)
            yield from re.findall(r"^gradspace [^#\n]*", lines, flags=re.MULTILINE)


@pytest.mark.slow
def test_documented_commands_exist() -> None:
    """Each `gradspace ...` line names real commands and options."""
    commands = {tuple(command.split()) for command in documented_commands()}
    assert commands
    for words in commands:
        options = {word.split("=")[0] for word in words if word.startswith("--")}
        path = [word for word in words[1:3] if re.fullmatch(r"[a-z]+", word)]
        shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "200"})
        assert shown.exit_code == 0, words
        assert all(option in shown.output for option in options), words


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_documented_comparisons_come_with_gradspace(page: Path) -> None:
    for name in re.findall(r"gradspace compare ([a-z][^ `\n]*)", page.read_text()):
        assert name.endswith(".toml") or builtin_file(name), name


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text()):
        found = (page.parent / target).resolve()
        assert found.exists() or found in GENERATED, target


def test_files_named_among_the_symbols_exist() -> None:
    named = re.findall(
        r"`([a-z_]+(?:/[a-z_]+)*\.py)`", (ROOT / "docs/reference/symbols.md").read_text()
    )
    assert len(named) > 10
    for name in named:
        assert (ROOT / "src/gradspace" / name).exists() or (ROOT / name).exists(), name


def test_contributing_is_short() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 60
