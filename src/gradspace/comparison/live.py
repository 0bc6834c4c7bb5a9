"""What a person sees while a comparison runs: a table of runs, and the time that is left."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from types import TracebackType

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table

from gradspace.comparison.grid import Cell
from gradspace.comparison.runner import Job
from gradspace.wording import counted


class LiveTable:
    """One row per objective, one column per seed; lines instead where there is no terminal."""

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

    def _table(self, jobs: dict[tuple[str, str, str, int], Job]) -> Table:
        done = sum(job.state in ("finished", "failed") for job in jobs.values()) + len(self.kept)
        of = counted(len(self.cells), "run")
        title = f"{done} of {of}, {time_left(jobs.values(), self._started)}"
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
        seeds = sorted({cell.seed for cell in self.cells})
        for name in ("dataset", "model", "objective", *(f"seed {seed}" for seed in seeds)):
            table.add_column(name, no_wrap=True, justify="right" if name[:5] == "seed " else "left")
        rows = dict.fromkeys((cell.dataset, cell.model, cell.objective) for cell in self.cells)
        for row in rows:
            states = [self._cell(jobs.get((*row, seed)), (*row, seed)) for seed in seeds]
            table.add_row(*row, *states)
        return table

    def _cell(self, job: Job | None, labels: tuple[str, str, str, int]) -> str:
        if labels in self.kept:
            return "[dim]kept[/]"
        if job is None:
            return ""
        shown = {
            "waiting": "[dim]·[/]",
            "failed": "[red]failed[/]",
            "stopped": "[yellow]stopped[/]",
        }
        if job.state == "running":
            return f"[cyan]{job.share:4.0%}[/]{_dev(job)}"
        return shown.get(job.state, f"[green]✓[/]{_dev(job)}")


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
