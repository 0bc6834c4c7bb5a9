"""Results on a GPU, and their JSON."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from benchmarks.case import Case, Measurement

ACCURACY = "accuracy"


@dataclass(frozen=True)
class Accuracy:
    """Error ||x - reference|| / ||reference|| of the value, and of the worse of both gradients."""

    dtype: str
    execution: str
    objective: str
    value_error: float = 0.0
    gradient_error: float = 0.0
    same_bits: bool = True
    """Whether a second run gave identical bits."""
    failure: str | None = None


@dataclass(frozen=True)
class Selection:
    """Selection of what a run measures: whole parts, or some of their batches and objectives."""

    parts: tuple[str, ...]
    batches: tuple[int, ...] = ()
    objectives: tuple[str, ...] = ()

    @property
    def is_restricted(self) -> bool:
        return bool(self.batches or self.objectives)

    @property
    def options(self) -> list[str]:
        """Command-line options of the selection, without the parts."""
        return [
            *(f"--batch {batch}" for batch in self.batches),
            *(f"--objective {objective}" for objective in self.objectives),
        ]

    def name_of(self, part: str) -> str:
        return ", ".join([part, " ".join(self.options)]) if self.is_restricted else part

    def takes(self, case: Case) -> bool:
        """Whether a case is selected; in training steps the objective follows the model's name."""
        return (
            case.suite in self.parts
            and (not self.batches or case.images in self.batches)
            and (not self.objectives or case.what.rpartition(", ")[2] in self.objectives)
        )


@dataclass
class Results:
    """Results of one run of the benchmarks, or a part of them if it was cut off."""

    machine: dict[str, str]
    """Command, date, device and versions."""
    accuracy: list[Accuracy] = field(default_factory=list)
    measured: dict[Case, Measurement] = field(default_factory=dict)
    later: dict[str, dict[str, str]] = field(default_factory=dict)
    """Machines of the parts, or rows of a part, that were measured in a separate run."""

    def measure_again(self, selection: Selection, machine: dict[str, str]) -> None:
        """Drop the selected results, which the given machine will measure again."""
        for part in selection.parts:
            if not selection.is_restricted:
                self.later = {k: m for k, m in self.later.items() if not k.startswith(f"{part}, ")}
            self.later[selection.name_of(part)] = machine
            if part == ACCURACY:
                self.accuracy.clear()
        self.measured = {c: m for c, m in self.measured.items() if not selection.takes(c)}

    def save(self, path: Path) -> None:
        """Write atomically: an interrupted write keeps the old file."""
        cases = [{"case": asdict(c), "measured": asdict(m)} for c, m in self.measured.items()]
        accuracy = [asdict(a) for a in self.accuracy]
        content = {
            "machine": self.machine,
            "accuracy": accuracy,
            "cases": cases,
            "later": self.later,
        }
        unfinished = path.with_name(f"{path.name}.part")
        unfinished.write_text(json.dumps(content, indent=1) + "\n")
        os.replace(unfinished, path)

    @staticmethod
    def load(path: Path) -> Results:
        content = json.loads(path.read_text())
        return Results(
            content["machine"],
            [Accuracy(**a) for a in content["accuracy"]],
            {Case(**c["case"]): Measurement(**c["measured"]) for c in content["cases"]},
            content.get("later", {}),
        )

    def of(self, *suites: str) -> list[Case]:
        return [case for case in self.measured if case.suite in suites]

    def product(self, case: Case) -> Measurement:
        """Measurement of the bare product of the case's size."""
        product = replace(case, who="product", what="product")
        return self.measured.get(product, Measurement())
