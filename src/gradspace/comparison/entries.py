"""Entries of a comparison: its finished runs, with all their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradspace.comparison.results import Row
from gradspace.runs.analysis import RunAnalysis, load_analysis
from gradspace.runs.folder import Run, results_name
from gradspace.runs.numbers import COCOS, SECONDS, cocos_metrics
from gradspace.runs.results import RunResults, check_comparable, load_results


@dataclass(frozen=True, eq=False)
class Entry:
    """A trained and evaluated run, and its place in the comparison."""

    dataset: str
    model: str
    objective: str
    seed: int
    run: Run
    results: RunResults
    analysis: RunAnalysis

    @property
    def labels(self) -> tuple[str, str, str, int]:
        return self.dataset, self.model, self.objective, self.seed

    @property
    def name(self) -> str:
        return f"{self.objective}, {self.model}, {self.dataset}, seed {self.seed}"

    def rows(self) -> Iterator[Row]:
        """Yield every number of the run."""
        counts = cocos_metrics(self.analysis.cocos)
        name = results_name(self.results.split, self.results.folds)
        measured = [(name, n, v, None) for n, v in self.results.metrics.items()]
        counted = [("train", name, c["mean"], c["std"]) for name, c in counts.items()]
        if self.analysis.seconds_per_batch is not None:
            counted.append(("train", SECONDS, self.analysis.seconds_per_batch, None))
        for split, metric, value, std in (*measured, *counted):
            yield Row(*self.labels, split, metric, value, std, str(self.run.folder))

    def value(self, metric: str) -> float:
        return self._row(metric).value

    def std_over_batches(self, metric: str) -> float | None:
        """Return the deviation over batches of a count; None for other metrics."""
        return self._row(metric).std if self.analysis.num_batches > 1 else None

    def _row(self, metric: str) -> Row:
        found = next((row for row in self.rows() if row.metric == metric), None)
        if found is None:
            results = self.run.results(self.results.split, self.results.folds)
            file = self.run.analysis if metric in (*COCOS, SECONDS) else results
            raise ValueError(
                f"{metric} was not measured for {self.name}: delete {file}, and it is made again"
            )
        return found


Group = Mapping[str, Sequence[Entry]]
"""objective -> its seeds, for one model on one dataset."""


def load_entry(
    run: Run, dataset: str, model: str, objective: str, seed: int, results_file: Path
) -> Entry:
    results, analysis = load_results(results_file), load_analysis(run.analysis)
    return Entry(dataset, model, objective, seed, run, results, analysis)


def grouped(entries: Sequence[Entry]) -> dict[tuple[str, str], dict[str, list[Entry]]]:
    """Group (dataset, model) -> objective -> seeds; within a dataset the test data must agree."""
    found: dict[tuple[str, str], dict[str, list[Entry]]] = {}
    for entry in entries:
        of_model = found.setdefault((entry.dataset, entry.model), {})
        of_model.setdefault(entry.objective, []).append(entry)
    for dataset in {dataset for dataset, _ in found}:
        check_comparable((e.name, e.results) for e in entries if e.dataset == dataset)
    return found


def per_image(group: Group, metric: str) -> dict[str, NDArray[np.float64]]:
    """Collect objective -> [seeds, images] of a recall or rsum, from which statistics are made."""
    return {
        objective: np.stack([entry.results.per_image(metric) for entry in seeds])
        for objective, seeds in group.items()
    }
