"""Shapes, labels and paths in brackets are shown as they are: rich would take them for styles."""

from __future__ import annotations

import ast
import io
from pathlib import Path

import pytest
from commands import here
from rich.console import Console

from gradspace.cli.shared import progress_bar
from gradspace.comparison.tables import Column, ResultTable, TableCell, as_rich

SOURCE = Path(__file__).parents[2] / "src" / "gradspace"
CONSOLES = {"console", "errors", "say", "self.console"}
RECIPE = """
title = "A [bold] table"
[needs]
"missing[1]" = "one .npy, [images, 256, 2048], from [red]elsewhere"
[datasets.D]
features = { source = "missing[1]" }
[models."M [2, 3]"]
reads = "features"
[objectives.triplet]
"""


def test_what_a_comparison_needs_keeps_its_brackets(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(RECIPE)
    told = here("compare", tmp_path / "r.toml", "--check").stdout
    assert "A [bold] table" in told
    assert "missing[1]" in told
    assert "[images, 256, 2048]" in " ".join(told.split())
    assert "[red]elsewhere" in " ".join(told.split())
    assert "[images, 256, 2048]" in " ".join(
        here("compare", "goal-table5", "--check").stdout.split()
    )


def test_labels_of_tables_keep_their_brackets() -> None:
    console = Console(file=io.StringIO(), width=200)
    column, row = Column("", "R@1 [bold]", 1), ("[blue] loss", (TableCell(1.0, None, 1),))
    table = ResultTable("[red]title", "objective [a]", (column,), (row,))
    console.print(*as_rich(table, console.width), sep="\n")
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for text in ("[red]title", "objective [a]", "R@1 [bold]", "[blue] loss"):
        assert text in shown


def test_bars_may_be_named_after_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    monkeypatch.setattr("gradspace.cli.shared.errors", console)
    with progress_bar("computing features with [red]{x}") as progress:
        progress(1, 2)
    assert "[red]{x}" in console.file.getvalue()  # type: ignore[attr-defined]


def test_no_text_is_printed_that_could_be_taken_for_styles() -> None:
    """What is put together is printed without markup, or its parts are escaped."""
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) not in {
                f"{console}.print" for console in CONSOLES
            }:
                continue
            plain = any(keyword.arg == "markup" for keyword in node.keywords)
            said = " ".join(map(ast.unparse, node.args))
            fixed = all(isinstance(each, ast.Constant | ast.Starred) for each in node.args)
            if not (plain or fixed or "escape(" in said or said in KNOWN):
                wrong.append(f"{path.relative_to(SOURCE)}:{node.lineno}: {said}")
    assert wrong == []


KNOWN = {"table", "COCOS_LEGEND", "OF_REDUCTIONS", "_rates_table(told['false_negatives'])"} | {
    "_shown(f'left out: {reason}')",  # a Text
    "f'[bold]{title}[/]: {len(plan.grid)} runs -> {folder}'",  # escaped before
}
