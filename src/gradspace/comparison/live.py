"""What a person sees while a comparison runs: a table of runs, and the time that is left."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from types import TracebackType

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from gradspace.comparison.grid import Cell
from gradspace.comparison.runner import Job
from gradspace.wording import counted

Labels = tuple[str, str, str, int]
"""Dataset, model, objective and seed."""
Jobs = Mapping[Labels, Job]


class LiveTable:
    """One row per objective, one column per seed; lines instead where there is no terminal.

    What all runs have in common is left out.
    """

    def __init__(self, console: Console, cells: Sequence[Cell], kept: Sequence[Cell]) -> None:
        self.console = console
        self.cells = cells
        self.kept = {cell.labels for cell in kept}
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
        """`jobs` are those of the cells that were not kept, in their order."""
        new = [cell for cell in self.cells if cell.labels not in self.kept]
        by_labels = {cell.labels: job for cell, job in zip(new, jobs, strict=True)}
        if self.console.is_terminal:
            self._live.update(self._table(by_labels))
            return
        for number, (cell, job) in enumerate(zip(new, jobs, strict=True)):
            if job.state in ("finished", "failed", "stopped") and number not in self._said:
                self._said.add(number)
                told = f": {job.problem}" if job.problem else _dev(job)
                line = f"{len(self._said):>3}/{len(new)}  {job.state:8}  {cell}{told}"
                self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _table(self, jobs: Jobs) -> Table:
        """A column per seed where they fit, else one that sums them up: rsum is never cut off."""
        whole = self._drawn(jobs, [(f"seed {seed}", [seed]) for seed in self._seeds()])
        if Console(width=1000).measure(whole).maximum <= self.console.width:
            return whole
        return self._drawn(jobs, [("seeds", self._seeds())])

    def _seeds(self) -> list[int]:
        return sorted({cell.seed for cell in self.cells})

    def _drawn(self, jobs: Jobs, columns: Sequence[tuple[str, Sequence[int]]]) -> Table:
        done = sum(job.state in ("finished", "failed") for job in jobs.values()) + len(self.kept)
        of, left = counted(len(self.cells), "run"), time_left(jobs.values(), self._started)
        title = f"{done} of {of}, {left}; rsum on dev"
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
        rows = dict.fromkeys((cell.dataset, cell.model, cell.objective) for cell in self.cells)
        differ = [len({row[place] for row in rows}) > 1 for place in (0, 1)]
        shown = [place for place in range(3) if place == 2 or differ[place]]
        for place in shown:
            table.add_column(("dataset", "model", "objective")[place], overflow="fold")
        for name, _ in columns:
            table.add_column(name, no_wrap=True, justify="right")
        for row in rows:
            states = [self._cell(jobs, [(*row, seed) for seed in seeds]) for _, seeds in columns]
            table.add_row(*(escape(row[place]) for place in shown), *states)
        return table

    def _cell(self, jobs: Jobs, labels: Sequence[Labels]) -> str:
        """The state of a run, or how many of several are done, with their mean rsum."""
        mine = [jobs[each] for each in labels if each in jobs]
        kept = sum(each in self.kept for each in labels)
        known = [job.rsum for job in mine if job.rsum is not None]
        rsum = f"  {fmean(known):.0f}" if known else ""
        if len(labels) > 1:
            done = kept + sum(job.state in ("finished", "failed") for job in mine)
            return f"{done} of {kept + len(mine)}{rsum}"
        if not mine:
            return "[dim]kept[/]" if kept else ""
        [job] = mine
        shown = {
            "waiting": "[dim]·[/]",
            "failed": "[red]failed[/]",
            "stopped": "[yellow]stopped[/]",
            "running": f"[cyan]{job.share:4.0%}[/]{rsum}",
        }
        return shown.get(job.state, f"[green]✓[/]{rsum}")


def time_left(jobs: Collection[Job], started: float) -> str:
    """From what is done since the start, every run counting the same."""
    shares = [job.share for job in jobs]
    done, left = sum(shares), len(shares) - sum(shares)
    if done < 0.02:
        return "time left not known yet"
    seconds = (time.monotonic() - started) / done * left
    return f"{int(seconds // 60)}:{int(seconds % 60):02d} left"


def _dev(job: Job) -> str:
    return "" if job.rsum is None else f"  dev rsum {job.rsum:.0f}"
