"""Display of a running comparison: a table of runs, and the time left."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from types import TracebackType

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from gradspace.comparison.cell_runs import CellRuns, Labels
from gradspace.comparison.runner import ENDED, Job
from gradspace.wording import counted

RowName = tuple[str, str, str]
Jobs = Mapping[Labels, Job]


class LiveTable:
    """Table with a row per objective and a column per seed; without a terminal, plain lines.

    Points of a study are summarised, and labels common to all runs are omitted.
    """

    def __init__(self, console: Console, runs: CellRuns) -> None:
        self.console = console
        self.runs = runs
        self._live = Live(console=console, transient=True, refresh_per_second=4)
        self._started = time.monotonic()
        self._said: set[int] = set()

    def __enter__(self) -> LiveTable:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def show(self, jobs: Sequence[Job]) -> None:
        """Show jobs, which are those of the missing cells, in their order."""
        missing = self.runs.missing
        if self.console.is_terminal:
            by_labels = {cell.labels: job for cell, job in zip(missing, jobs, strict=True)}
            self._live.update(self._table(by_labels))
            return
        total = self.runs.total - len(self.runs.kept)
        for number, (cell, job) in enumerate(zip(missing, jobs, strict=True)):
            if job.state in ENDED and number not in self._said:
                self._said.add(number)
                told = f": {job.problem}" if job.problem else _dev(job)
                line = f"{len(self._said):>3}/{total}  {job.state:8}  {cell}{told}"
                self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _table(self, jobs: Jobs) -> Table:
        """Draw a column per seed if they fit, else one that sums them up; rsum is never cut off."""
        if any(cell.point for cell in self.runs.every):
            return self._searches(jobs)
        seeds = sorted({cell.seed for cell in self.runs.every})
        whole = self._drawn(jobs, [(f"seed {seed}", [seed]) for seed in seeds])
        if Console(width=1000).measure(whole).maximum <= self.console.width:
            return whole
        return self._drawn(jobs, [("seeds", seeds)])

    def _drawn(self, jobs: Jobs, columns: Sequence[tuple[str, Sequence[int]]]) -> Table:
        kept = {cell.labels for cell in self.runs.kept}
        cells = {}
        for row in dict.fromkeys(cell.labels[:3] for cell in self.runs.every):
            of_columns = [[(*row, seed) for seed in seeds] for _, seeds in columns]
            cells[row] = [
                _cell([jobs[one] for one in labels if one in jobs], sum(o in kept for o in labels))
                for labels in of_columns
            ]
        return self._rows(jobs, cells, [name for name, _ in columns])

    def _searches(self, jobs: Jobs) -> Table:
        """Count the runs of every objective by state, and show the best of them."""
        searches: dict[RowName, list[Labels]] = {}
        for cell in self.runs.every:
            searches.setdefault(cell.search, []).append(cell.labels)
        known = dict(self.runs.outcomes)
        known |= {labels: job.rsum for labels, job in jobs.items() if job.rsum is not None}
        cells = {}
        for search, labels in searches.items():
            states = Counter(jobs[one].state if one in jobs else "finished" for one in labels)
            best = max((known[one] for one in labels if one in known), default=None)
            numbers = (*(states[one] for one in ("finished", "running", "failed")), best)
            cells[search] = [f"{number:.0f}" if number else "" for number in numbers]
        return self._rows(jobs, cells, ["done", "now", "failed", "best"])

    def _rows(
        self, jobs: Jobs, cells: Mapping[RowName, Sequence[str]], columns: Sequence[str]
    ) -> Table:
        of, kept = self.runs.total, len(self.runs.kept)
        done = sum(job.state in ("finished", "failed") for job in jobs.values()) + kept
        shares = [job.share for job in jobs.values()]
        left = time_left(sum(shares), of - kept - sum(shares), self._started)
        title = f"{done} of {counted(of, 'run')}, {left}; rsum on dev"
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
        differ = [len({row[place] for row in cells}) > 1 for place in (0, 1)]
        shown = [place for place in range(3) if place == 2 or differ[place]]
        for place in shown:
            table.add_column(("dataset", "model", "objective")[place], overflow="fold")
        for name in columns:
            table.add_column(name, no_wrap=True, justify="right")
        for row, states in cells.items():
            table.add_row(*(escape(row[place]) for place in shown), *states)
        return table


def time_left(done: float, left: float, started: float) -> str:
    """Estimate from the runs done since the start, all weighted equally."""
    if done < 0.02:
        return "time left unknown yet"
    seconds = (time.monotonic() - started) / done * left
    return f"{int(seconds // 60)}:{int(seconds % 60):02d} left"


def _dev(job: Job) -> str:
    return "" if job.rsum is None else f"  dev rsum {job.rsum:.0f}"


def _cell(jobs: Sequence[Job], num_kept: int) -> str:
    """Format the state of a run, or the number done of several, with their mean rsum."""
    known = [job.rsum for job in jobs if job.rsum is not None]
    rsum = f"  {fmean(known):.0f}" if known else ""
    if len(jobs) + num_kept > 1:
        done = num_kept + sum(job.state in ("finished", "failed") for job in jobs)
        return f"{done} of {num_kept + len(jobs)}{rsum}"
    if not jobs:
        return "[dim]kept[/]" if num_kept else ""
    [job] = jobs
    shown = {
        "waiting": "[dim]·[/]",
        "failed": "[red]failed[/]",
        "stopped": "[yellow]stopped[/]",
        "running": f"[cyan]{job.share:4.0%}[/]{rsum}",
    }
    return shown.get(job.state, f"[green]✓[/]{rsum}")
