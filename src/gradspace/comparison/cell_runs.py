"""Cells of a comparison and their runs: which are finished, and which have to be trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gradspace.comparison.grid import Cell, with_first_rounds
from gradspace.comparison.recipe import Comparison
from gradspace.comparison.worker import Task
from gradspace.runs.analysis import load_analysis
from gradspace.runs.folder import Run
from gradspace.runs.numbers import SECONDS
from gradspace.runs.results import load_results
from gradspace.training.schedule import stages

Labels = tuple[str, str, str, int]
"""Dataset, model, objective and seed."""
CHOSEN_BY = "rsum"
"""Metric by which points of a study are chosen."""
COLLAPSED = 0.0
"""Value of a run that collapsed, or whose loss was not finite: no rsum is lower."""


@dataclass
class CellRuns:
    """Runs of a comparison as they are on disk; cells may be added while others train."""

    comparison: Comparison
    out: Path
    planned: int
    """Number of runs in the final tables, including those not chosen yet."""
    cells: list[Cell] = field(default_factory=list)
    """Cells of the tables so far."""
    kept: list[Cell] = field(default_factory=list)
    """Cells that were finished before, including first rounds."""
    missing: list[Cell] = field(default_factory=list)
    """All other cells, in the order of their tasks."""
    outcomes: dict[Labels, float] = field(default_factory=dict)
    """Known results of `outcome`."""

    def add(self, cells: Sequence[Cell]) -> list[Task]:
        """Add cells, and return the tasks that have to be trained for them."""
        self.cells += cells
        known = {cell.labels for cell in self.every}
        tasks = []
        for cell in with_first_rounds(cells):
            if cell.labels in known:
                continue
            if self.is_finished(cell):
                self.kept.append(cell)
            else:
                self.missing.append(cell)
                tasks.append(self._task(cell))
        return tasks

    @property
    def every(self) -> list[Cell]:
        return [*self.kept, *self.missing]

    @property
    def total(self) -> int:
        """Number of all runs, including future ones."""
        return len(self.every) + self.planned - len(self.cells)

    def run(self, cell: Cell) -> Run:
        return Run(cell.folder(self.out / "runs"))

    def outcome(self, cell: Cell) -> float | None:
        """Return the metric of a finished run, 0 if training failed for good, None before that."""
        if cell.labels not in self.outcomes:
            if self.has_collapsed(cell):
                self.outcomes[cell.labels] = COLLAPSED
            elif self.is_finished(cell):
                results = load_results(self._results(self.run(cell)))
                self.outcomes[cell.labels] = results.metrics[CHOSEN_BY]
        return self.outcomes.get(cell.labels)

    def has_collapsed(self, cell: Cell) -> bool:
        """Whether training gave up on a cell for good."""
        return self.run(cell).failure.exists()

    def is_finished(self, cell: Cell) -> bool:
        """Whether a cell is trained to its end, and evaluated and analysed as required."""
        run, comparison = self.run(cell), self.comparison
        if not (run.has_begun or run.failure.exists()):
            return False
        if run.recipe() != cell.recipe_in(self.out / "runs"):
            raise ValueError(
                f"{run.folder} was trained with another recipe than {cell} has now: delete it, or "
                "choose another --out"
            )
        if not (self._results(run).exists() and run.analysis.exists() and _is_trained(run)):
            return False
        analysis = load_analysis(run.analysis)
        if analysis.counting != comparison.cocos.counting:
            return False
        return SECONDS not in comparison.metrics or bool(analysis.seconds_per_batch)

    def _results(self, run: Run) -> Path:
        return run.results(self.comparison.split, self.comparison.folds)

    def _task(self, cell: Cell) -> Task:
        runs, comparison = self.out / "runs", self.comparison
        return Task(
            cell.folder(runs),
            cell.recipe_in(runs),
            comparison.split,
            comparison.folds,
            cell.first.folder(runs) if cell.first else None,
            SECONDS in comparison.metrics,
            comparison.cocos.counting,
        )


def _is_trained(run: Run) -> bool:
    """Whether a run is trained to its end; `gradspace report` may have evaluated a stopped one."""
    last = stages(run.recipe())[-1].end - 1
    return any(line["kind"] == "epoch" and line["epoch"] == last for line in run.metrics())
