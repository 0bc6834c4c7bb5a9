"""Output of a comparison on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from gradspace.comparison.compare import Compared, Findings
from gradspace.comparison.tables import as_rich
from gradspace.runs.numbers import COCOS_SPREAD
from gradspace.wording import typed


def show_findings(
    console: Console, findings: Findings, outcome: Compared, paths: Sequence[Path]
) -> None:
    """Print tables, verdicts, failures and the paths of files."""
    if findings.counts:
        console.print(COCOS_SPREAD, markup=False, highlight=False)
    for table in findings.tables:
        console.print(*as_rich(table, console.width), sep="\n")
    if findings.verdicts and console.is_terminal:  # only a terminal shows bold text
        console.print("[bold]bold[/] best, [underline]underlined[/] cannot be told apart from it")
    for sentence in findings.verdicts:
        console.print(f"- {sentence}", highlight=False, markup=False)
    for cell, problem in outcome.failed:
        console.print(f"failed: {cell}: {problem}", style="red", highlight=False, markup=False)
    for path in paths:
        console.print(f"wrote {typed(path)}", markup=False, highlight=False, soft_wrap=True)
    if outcome.stopped:
        console.print("stopped; the same command resumes")
