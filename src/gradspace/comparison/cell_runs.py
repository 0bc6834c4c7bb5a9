"""The cells of a comparison and their runs: which are finished, which are to be trained."""

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
"""The metric by which points of a study are chosen."""
COLLAPSED = 0.0
"""What a run that collapsed, or whose loss was not finite, counts as: no rsum is lower."""


@dataclass
class CellRuns:
    """All runs of a comparison as they are on disk; further cells may come while others train."""

    comparison: Comparison
    out: Path
    planned: int
    """Runs that the tables will have, those that are yet to be chosen included."""
    cells: list[Cell] = field(default_factory=list)
    """Those of the tables so far."""
    kept: list[Cell] = field(default_factory=list)
    """Those that were finished before, first rounds too."""
    missing: list[Cell] = field(default_factory=list)
    """All others, in the order of their tasks."""
    outcomes: dict[Labels, float] = field(default_factory=dict)
    """What is known of `outcome`."""

    def add(self, cells: Sequence[Cell]) -> list[Task]:
        """Take in more cells; what has to be trained for them."""
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
        """All runs that there will be."""
        return len(self.every) + self.planned - len(self.cells)

    def run(self, cell: Cell) -> Run:
        return Run(cell.folder(self.out / "runs"))

    def outcome(self, cell: Cell) -> float | None:
        """How well a run did, and 0 where training failed for good; None before that."""
        if cell.labels not in self.outcomes:
            if self.has_collapsed(cell):
                self.outcomes[cell.labels] = COLLAPSED
            elif self.is_finished(cell):
                results = load_results(self._results(self.run(cell)))
                self.outcomes[cell.labels] = results.metrics[CHOSEN_BY]
        return self.outcomes.get(cell.labels)

    def has_collapsed(self, cell: Cell) -> bool:
        """Did training give up on it, for good?"""
        return self.run(cell).failure.exists()

    def is_finished(self, cell: Cell) -> bool:
        """Trained to its end, evaluated and analysed as the comparison asks for."""
        run, comparison = self.run(cell), self.comparison
        if not (run.has_begun or run.failure.exists()):
            return False
        if run.recipe() != cell.recipe_in(self.out / "runs"):
            raise ValueError(
                f"{run.folder} was trained by another recipe than {cell} has now: delete it, or "
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
    """To its end; one that was stopped may have been evaluated as well, by `gradspace report`."""
    last = stages(run.recipe())[-1].end - 1
    return any(line["kind"] == "epoch" and line["epoch"] == last for line in run.metrics())
