"""What was not tested, and why, in the last lines of a test run: a pytest plugin."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.stats.get("skipped", [])
    if not reports:
        return
    title = f"NOT TESTED: {len(reports)} skipped, because of what is missing here"
    terminalreporter.section(title, yellow=True, bold=True)
    for line in skipped_lines(reports):
        terminalreporter.line(line)


def skipped_lines(reports: Sequence[pytest.TestReport | pytest.CollectReport]) -> Iterator[str]:
    """One line per reason: how many tests, why, and in which files."""
    files: dict[str, list[str]] = defaultdict(list)
    for report in reports:
        assert isinstance(report.longrepr, tuple)
        files[report.longrepr[2].removeprefix("Skipped: ")].append(report.nodeid.split("::")[0])
    for reason, found in sorted(files.items(), key=lambda item: -len(item[1])):
        yield f"{len(found):>5}  {reason} ({', '.join(sorted(set(found)))})"
