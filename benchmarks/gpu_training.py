"""GPU suite: whole training steps, and how much of them is neither model nor objective.

It covers the papers' models with 128 pairs at their published sizes, and the fine-tuning of a dual
encoder of the size of CLIP ViT-B/32. A step is that of `gradspace train`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import cycle

from benchmarks.case import Case, Measurement
from benchmarks.gpu_results import Results
from benchmarks.gpu_timing import Step, measure_step
from benchmarks.random_training import (
    TINY,
    VIT_B_32,
    batches_forever,
    dual_trainer,
    feature_trainer,
    model_table,
    picture_batches,
    random_features,
    temporary_run,
)
from benchmarks.step_parts import COLUMNS, PARTS, percent, prepare_part, row
from benchmarks.tables import Table
from gradspace.data.batches import Batch
from gradspace.training.loop import Trainer

SUITE = "training"
DUAL = "ViT-B/32"
FEATURES = (
    ("VSE++", "triplet-hard"),
    ("VSE++", "nt-xent"),
    ("VSE++", "circle/sigmoid-ms"),
    ("VSRN", "triplet-hard"),
    ("VSE-infinity", "triplet-hard"),
    ("BFAN", "triplet-hard"),
)
DUAL_OBJECTIVE, DUAL_PAIRS = "nt-xent", (256, 1024)
STEPS, STEPS_OF_DUAL, CALLS_OF_OBJECTIVE = 100, 10, 50
"""Numbers of calls timed in a row; one of the `STEPS` measures COCOS."""
REPEATS = 3
TARGET_MODEL, TARGET = "VSE++", 0.1
"""Model with a target, and the largest share of its step that the objective should take."""


def cases(quick: bool) -> list[Case]:
    pairs, width, dual = (16, 16, (8,)) if quick else (128, 1024, DUAL_PAIRS)
    rows = [(f"{model}, {objective}", pairs, width) for model, objective in FEATURES]
    space = (TINY if quick else VIT_B_32).text_width
    rows += [(f"{DUAL}, {DUAL_OBJECTIVE}", size, space) for size in dual]
    return [Case(SUITE, part, what, size, 1, w) for what, size, w in rows for part in PARTS]


def measure(case: Case, device: str) -> Measurement:
    step = prepare(case, device)
    calls = STEPS_OF_DUAL if case.what.startswith(DUAL) else STEPS
    if case.who == "objective":
        calls = CALLS_OF_OBJECTIVE
    found = measure_step(step, device, calls=calls if device != "cpu" else 1, repeats=REPEATS)
    if case.who == PARTS[-1]:
        _trainer.cache_clear()  # releases its memory for the next one
    return found


def prepare(case: Case, device: str) -> Step:
    return prepare_part(case.who, *_trainer(replace(case, who=""), device))


@lru_cache(maxsize=1)
def _trainer(case: Case, device: str) -> tuple[Trainer, Iterator[Batch]]:
    """Make one trainer for a step and its parts."""
    model, _, objective = case.what.partition(", ")
    run = temporary_run()
    if model == DUAL:
        sizes = TINY if case.width == TINY.text_width else VIT_B_32
        trainer = dual_trainer(sizes, run, device, objective=objective, batch=case.images)
        return trainer, cycle(picture_batches(sizes, case.images, device))
    trainer = feature_trainer(
        random_features(model, device),
        run,
        device,
        model=model_table(model, case.width),
        objective={"name": objective, "warm_up": None},
        training={"batch_size": case.images},
    )
    return trainer, batches_forever(trainer)


# --- the table ----------------------------------------------------------------------------------


def tables(found: Results) -> list[Table]:
    steps = [case for case in found.of(SUITE) if case.who == "step"]
    if not steps:
        return []
    rows = [
        [case.what, str(case.images), *row([_part(found, case, part) for part in PARTS])]
        for case in steps
    ]
    columns = ["model, objective", "pairs", *COLUMNS]
    return [Table("Whole training steps, bfloat16", columns, rows, _finding(found))]


def _part(found: Results, step: Case, part: str) -> Measurement:
    return found.measured.get(replace(step, who=part), Measurement())


def _finding(found: Results) -> str:
    objectives: dict[str, float] = {}
    rest: dict[str, float] = {}
    for case in (case for case in found.of(SUITE) if case.who == "step"):
        step, model, objective = (_part(found, case, part).seconds for part in PARTS)
        if step and model and objective:
            name = f"{case.what} at {case.images:,}"
            objectives[name] = objective / step
            rest[name] = (step - model - objective) / step
    target = f"Target: the objective takes less than {percent(TARGET)} of a step of {TARGET_MODEL}."
    if not objectives:
        return target
    aimed_at = [share for name, share in objectives.items() if name.startswith(TARGET_MODEL)]
    met = f"It takes up to {percent(max(aimed_at))}. " if aimed_at else ""
    most, other = (max(shares, key=lambda name: shares[name]) for shares in (objectives, rest))
    return (
        f"{target} {met}Of all, {most} has the largest share of its objective, "
        f"{percent(objectives[most])}, and {other} of what is neither model nor objective, "
        f"{percent(rest[other])}."
    )
