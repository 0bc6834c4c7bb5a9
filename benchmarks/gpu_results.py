"""What was found on a GPU, and its JSON."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from benchmarks.case import Case, Measurement

ACCURACY = "accuracy"


@dataclass(frozen=True)
class Accuracy:
    """||x - reference|| / ||reference|| of the value and of the worse of the two gradients."""

    dtype: str
    execution: str
    objective: str
    value_error: float = 0.0
    gradient_error: float = 0.0
    same_bits: bool = True
    """Did a second run give exactly the same?"""
    failure: str | None = None


@dataclass(frozen=True)
class Selection:
    """What a run measures: whole parts, or their cases of some batches and objectives."""

    parts: tuple[str, ...]
    batches: tuple[int, ...] = ()
    objectives: tuple[str, ...] = ()

    @property
    def is_restricted(self) -> bool:
        return bool(self.batches or self.objectives)

    @property
    def options(self) -> list[str]:
        """Of the command, but for the parts."""
        return [
            *(f"--batch {batch}" for batch in self.batches),
            *(f"--objective {objective}" for objective in self.objectives),
        ]

    def name_of(self, part: str) -> str:
        return ", ".join([part, " ".join(self.options)]) if self.is_restricted else part

    def takes(self, case: Case) -> bool:
        """Cases of training steps name their objective after the model."""
        return (
            case.suite in self.parts
            and (not self.batches or case.images in self.batches)
            and (not self.objectives or case.what.rpartition(", ")[2] in self.objectives)
        )


@dataclass
class Results:
    """All that one run of the benchmarks found; part of it, if it was cut off."""

    machine: dict[str, str]
    """The command, the date, the device and versions."""
    accuracy: list[Accuracy] = field(default_factory=list)
    measured: dict[Case, Measurement] = field(default_factory=dict)
    later: dict[str, dict[str, str]] = field(default_factory=dict)
    """By part, or rows of one: the machine of those that were measured in a run of their own."""

    def measure_again(self, selection: Selection, machine: dict[str, str]) -> None:
        """Forget what is selected, which that machine will measure."""
        for part in selection.parts:
            if not selection.is_restricted:
                self.later = {k: m for k, m in self.later.items() if not k.startswith(f"{part}, ")}
            self.later[selection.name_of(part)] = machine
            if part == ACCURACY:
                self.accuracy.clear()
        self.measured = {c: m for c, m in self.measured.items() if not selection.takes(c)}

    def save(self, path: Path) -> None:
        """All or nothing: who is cut off while writing keeps what was there."""
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
        """The bare product of that size."""
        product = replace(case, who="product", what="product")
        return self.measured.get(product, Measurement())
