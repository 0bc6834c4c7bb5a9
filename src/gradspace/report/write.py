"""Assembly and writing of the report."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from gradspace.comparison.compare import Findings
from gradspace.comparison.entries import Entry, Group, grouped
from gradspace.files import write_atomically
from gradspace.processes import choose_device
from gradspace.progress import Progress
from gradspace.report.curves import TOGETHER, count_rows, learning_rows
from gradspace.report.differences import make_forest
from gradspace.report.distributions import cross_rank_rows, score_plots
from gradspace.report.examples import ExampleMaker
from gradspace.report.history import History
from gradspace.report.looks import looks_of, themes
from gradspace.report.provenance import provenance, recipes_of
from gradspace.report.svg import Drawer
from gradspace.report.tables import MEANINGS, cocos_tables, shown_columns, spans, with_symbols
from gradspace.report.triplets import triplet_plots

MOST_EXAMPLES, ALL_EXAMPLES = 12, 20
"""Queries per direction, for one dataset and model and for all: pictures take most of the file."""
MOST_DRAWN = 30
"""Number of objectives drawn, over all groups: those with the highest rsum."""

LONG = 280
"""Number of characters of a verdict that can be read at a glance."""


@dataclass(frozen=True)
class ReportPart:
    """Part of a section, on one dataset and model."""

    label: str
    content: Any
    problem: str = ""
    """Sentence on why there is no content."""


def write_report(
    path: Path,
    title: str,
    entries: Sequence[Entry],
    findings: Findings,
    *,
    notes: Sequence[str] = (),
    failed: Sequence[str] = (),
    device: torch.device | None = None,
    progress: Progress | None = None,
    today: date | None = None,
) -> None:
    """Write one HTML file with everything known about the finished runs of a comparison.

    Examples are retrieved again with the runs' best weights, on `device`. Where something is
    missing, such as a dataset that was moved, a sentence replaces the section; the report is always
    written.
    """
    if not entries:
        raise ValueError("there are no finished runs to report on")
    groups = grouped(entries)
    contents = _Contents(entries, findings, groups, device or choose_device(), progress)
    page = template("report.html").render(
        title=title,
        today=today or date.today(),
        entries=entries,
        findings=findings,
        verdicts=_verdicts(groups, findings),
        notes=notes,
        failed=failed,
        looks=contents.looks,
        left_out=contents.left_out,
        sections=contents.sections(),
        pictures=contents.examples.thumbnails.pictures,
        made=provenance(entries),
    )
    with write_atomically(path) as file:
        file.write(page)


class _Contents:
    """Makes the parts of every section, one after the other."""

    def __init__(
        self,
        entries: Sequence[Entry],
        findings: Findings,
        groups: Mapping[tuple[str, str], Group],
        device: torch.device,
        progress: Progress | None,
    ) -> None:
        self.findings = findings
        self.groups = groups
        self.most_drawn = max(TOGETHER, MOST_DRAWN // len(groups))
        self.looks = looks_of(entry.objective for entry in entries)
        self.history = History(entries)
        self.drawer = Drawer()
        self.examples = ExampleMaker(device, min(MOST_EXAMPLES, ALL_EXAMPLES // len(groups) or 1))
        self._progress = progress
        self._done = 0

    @property
    def left_out(self) -> str:
        """Sentence on the objectives that are not drawn."""
        if all(len(group) <= self.most_drawn for group in self.groups.values()):
            return ""
        return f"Plots show the {self.most_drawn} objectives with the highest mean rsum."

    def sections(self) -> dict[str, list[ReportPart]]:
        """Make the parts of each section, one for every dataset and model."""
        drawer, history, looks = self.drawer, self.history, self.looks
        makers: dict[str, Callable[[tuple[str, str], Group], Any]] = {
            "differences": lambda key, _: make_forest(self.findings.tests, *key),
            "learning": lambda _, group: learning_rows(drawer, history, group, looks),
            "counts": lambda _, group: count_rows(drawer, history, group, looks),
            "cocos": lambda key, group: cocos_tables(_label(key), group),
            "triplets": lambda _, group: triplet_plots(drawer, history, group),
            "scores": lambda _, group: score_plots(drawer, group),
            "cross": lambda _, group: cross_rank_rows(drawer, group, looks),
            "examples": lambda _, group: self.examples.make(group),
            "recipes": lambda _, group: recipes_of(group),
        }
        total = len(makers) * len(self.groups)
        drawn = {key: _best_of(group, self.most_drawn) for key, group in self.groups.items()}
        found: dict[str, list[ReportPart]] = {}
        for name, make in makers.items():
            whole = name in ("differences", "cocos", "examples", "recipes")
            for key, group in (self.groups if whole else drawn).items():
                found.setdefault(name, []).append(_part(_label(key), make, key, group))
                self._done += 1
                if self._progress:
                    self._progress(self._done, total)
        return found


def _part(
    label: str,
    make: Callable[[tuple[str, str], Group], Any],
    key: tuple[str, str],
    group: Group,
) -> ReportPart:
    """Make a part, or say why it failed: after hours of training no plot may cost the report."""
    try:
        return ReportPart(label, make(key, group))
    except Exception as error:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        return ReportPart(label, None, f"This could not be made: {reason}.")


def _label(key: tuple[str, str]) -> str:
    dataset, model = key
    return f"{model}, {dataset}"


def _best_of(group: Group, most: int) -> Group:
    """Select the objectives to draw, in their order."""
    means = {o: np.mean([e.results.metrics["rsum"] for e in seeds]) for o, seeds in group.items()}
    best = sorted(group, key=lambda objective: -means[objective])[:most]
    return {objective: seeds for objective, seeds in group.items() if objective in best}


@dataclass(frozen=True)
class Verdict:
    """Verdict in words on the objectives of one dataset and model."""

    label: str
    lead: str
    details: str = ""
    """Full verdict, if it covers too many objectives to be read first."""


def _verdicts(groups: Mapping[tuple[str, str], Group], findings: Findings) -> list[Verdict]:
    found = []
    for key, group in groups.items():
        prefix = f"{_label(key)}: "
        own = [v.removeprefix(prefix) for v in findings.verdicts if v.startswith(prefix)]
        forest = make_forest(findings.tests, *key)
        if own and forest and len(own[0]) > LONG:
            found.append(Verdict(_label(key), forest.sentence, own[0]))
        elif own:
            found.append(Verdict(_label(key), own[0]))
        else:
            objective, seeds = next(iter(group.items()))
            mean = np.mean([entry.results.metrics["rsum"] for entry in seeds])
            lead = f"{objective} has {mean:.1f} rsum; there is no other objective to compare with."
            found.append(Verdict(_label(key), lead))
    return found


def template(name: str) -> Template:
    """Load a template, which escapes everything that is not marked as safe."""
    loader = PackageLoader("gradspace.report", "templates")
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = Markup(loader.get_source(environment, "report.js")[0].strip())
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals.update(
        style=Markup(loader.get_source(environment, "report.css")[0].strip()),
        script=script,
        script_hash=f"sha256-{allowed}",
        themes=themes(),
        shown_columns=shown_columns,
        spans=spans,
        meanings=MEANINGS,
    )
    environment.filters["symbols"] = with_symbols
    environment.filters["signed"] = lambda value: f"{value:+.1f}".replace("-", "\N{MINUS SIGN}")
    return environment.get_template(name)
