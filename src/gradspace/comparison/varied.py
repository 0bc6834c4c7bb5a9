"""Keys that a grid varies, which `--set` must not change: a row is what its name says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from gradspace.comparison.grid import Cell, cells, chosen, objective_tables, with_first_rounds
from gradspace.comparison.recipe import (
    NAMED,
    PARTS,
    Choice,
    Comparison,
    Tables,
    overlap,
)

OPTIONAL = ("finetune", "offline")
"""Tables that only some runs of a grid may have."""


def check_overrides(
    comparison: Comparison, name: str, overrides: Sequence[str], *, small: bool = False
) -> None:
    """Reject overrides for all runs of keys in which they differ."""
    keys = {override: override.partition("=")[0].strip() for override in overrides}
    partial = _partial(comparison, name, list(keys.values()), small)
    varied = {**NAMED, **_told_apart(comparison), **partial, **NAMED}  # names come first
    for override, key in keys.items():
        found = next((one for one in varied if overlap(key, one)), None)
        if found is not None:
            raise ValueError(f"--set {override}: {varied[found]}")


def leave_out_doubles(grid: Sequence[Cell]) -> tuple[list[Cell], list[str]]:
    """Keep the first of cells that would be the same run; describe those left out."""
    first_of: dict[tuple[object, ...], Cell] = {}
    notes: dict[str, None] = {}
    for cell in grid:
        round_before = cell.first and cell.first.labels
        same = first_of.setdefault((cell.recipe, round_before, cell.continues), cell)
        if same is not cell:
            pairs = zip(cell.labels, same.labels, strict=True)
            own, others = next((own, others) for own, others in pairs if own != others)
            notes[f"{own} is the same as {others} here, and is left out"] = None
    return list(first_of.values()), list(notes)


def _told_apart(comparison: Comparison) -> dict[str, str]:
    """Map keys that `--set` must not change to the reason."""
    found = {
        key: f"{key} is a parameter of this study: change [parameters] in the recipe"
        for name in comparison.objectives
        for key in comparison.study(name).axes
    }
    for axis, tables in _axes(comparison):
        link = "after" if axis == "model" else "continues"
        if any(label.get(link) for label in tables.values()):
            found["init"] = "some of the runs start from the weights of others of this comparison"
        own = "data" if axis == "dataset" else axis
        for (one, a), (other, b) in combinations(tables.items(), 2):
            for key in _differences(a, b, own):
                told = (
                    f"{key} distinguishes {axis} {one!r} from {other!r}: change it in the recipe, "
                    f"or choose a part of the grid with --only {axis}=LABEL"
                )
                found.setdefault(key, told)
    return found


def _axes(comparison: Comparison) -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    """Yield every axis with the tables of each of its labels."""
    only = comparison.only
    objectives = chosen(comparison.objectives, only.objective)
    yield (
        "objective",
        {
            name: {**_flat(objective_tables(comparison, name)), **_links(choice)}
            for name, choice in objectives.items()
        },
    )
    models = chosen(comparison.models, only.model)
    yield "model", {n: {**_flat(model.tables), **_links(model)} for n, model in models.items()}
    yield (
        "dataset",
        {
            f"{dataset}, {kind}": _flat({"data": inputs[kind]})
            for dataset, inputs in chosen(comparison.datasets, only.dataset).items()
            for kind in dict.fromkeys(model.reads for model in models.values())
            if kind in inputs
        },
    )


def _links(choice: Choice) -> dict[str, Any]:
    """Return the settings of a label besides its tables: the run it starts from, and its input."""
    return choice.model_dump(exclude={*PARTS, "parameters"})


def _differences(a: Mapping[str, Any], b: Mapping[str, Any], own: str) -> set[str]:
    """List keys in which two labels differ: those of the table `own`, or else all."""
    differ = {key for key in (*a, *b) if a.get(key) != b.get(key)}
    about = {key for key in differ if key.startswith(f"{own}.") or "." not in key}
    return {key for key in about or differ if "." in key}


def _flat(tables: Tables, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tables.items():
        path = f"{prefix}{key}"
        found |= _flat(value, f"{path}.") if isinstance(value, dict) else {path: value}
    return found


def _partial(comparison: Comparison, name: str, keys: Sequence[str], small: bool) -> dict[str, str]:
    """Find tables that only some runs have: setting a key of them would give them to all."""
    wanted = [table for table in OPTIONAL if any(overlap(key, table) for key in keys)]
    if not wanted:
        return {}
    every = with_first_rounds(cells(comparison, name, small=small))
    found = {}
    for table in wanted:
        if len({getattr(cell.recipe, table) is None for cell in every}) > 1:
            found[table] = (
                f"only some of the runs have [{table}], and this would give it to all: change "
                "it in the recipe"
            )
    return found
