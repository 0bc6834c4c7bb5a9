"""Launches, synchronisations and copies of one forward + backward of a loss on a GPU.

They are counted by the profiler, not timed: at common batch sizes a loss costs what its launches
cost, and a synchronisation keeps the CPU from preparing the next step meanwhile. Tests count in the
same way (`tests/test_cuda.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import profile, record_function, supported_activities

import gradspace as gs
from benchmarks.case import Case, Measurement, bfloat16_batch
from benchmarks.gpu_results import Results
from benchmarks.gpu_timing import Step
from benchmarks.losses import COSINE
from benchmarks.plain import PLAIN
from benchmarks.tables import Table

SUITE = "launches"
PLAIN_TORCH = "plain torch"
IDS = ("ids on the GPU", "ids on the CPU", "by position")
WARM_UP = 3
"""Calls before the counted one, which compile kernels and allocate memory."""
MOST_LAUNCHES = 25
"""Target for the launches of a call, along with no synchronisation."""

LAUNCH = re.compile(r"cu(da)?(Launch\w*Kernel|GraphLaunch)")
SYNCHRONISATION = re.compile(
    r"cu(da)?(Stream|Device|Event|Ctx)Synchronize|cu(da)?Memcpy(?!\w*Async)"
)
COPY_TO_HOST = re.compile(r"Memcpy DtoH")
REGION = "counted call"


@dataclass(frozen=True)
class Counts:
    launches: int
    """Kernel launches; a CUDA graph counts once."""
    synchronisations: int
    """Calls that wait for the GPU, including blocking copies."""
    copies_to_host: int


def count(step: Step) -> Counts:
    """Profile one call, after warm-up calls."""
    for _ in range(WARM_UP):
        step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    activities = supported_activities()  # type: ignore[no-untyped-call]
    with profile(activities=activities, acc_events=True) as profiler:
        with record_function(REGION):
            step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    found = counts_of(profiler.events())
    if torch.cuda.is_available() and not found.launches:
        raise RuntimeError(
            "the profiler saw no kernel launch: check that it has permission to trace this GPU"
        )
    return found


def counts_of(events: Iterable[Any]) -> Counts:
    """Count the profiler's events: calls by the CPU within the region, and copies.

    The profiler itself synchronises after the region.
    """
    events = list(events)
    on_cpu = [e for e in events if e.device_type == DeviceType.CPU]
    region = next(e for e in on_cpu if e.name == REGION).time_range
    asked = [e.name for e in on_cpu if region.start <= e.time_range.start <= region.end]
    return Counts(
        sum(bool(LAUNCH.match(name)) for name in asked),
        sum(bool(SYNCHRONISATION.match(name)) for name in asked),
        sum(bool(COPY_TO_HOST.match(e.name)) for e in events),
    )


# --- the suite ----------------------------------------------------------------------------------


def cases(quick: bool) -> list[Case]:
    """List every objective with every kind of ids, and with plain torch."""
    size, width = (64, 32) if quick else (512, 512)
    return [
        Case(SUITE, who, info.name, size, 1, width)
        for info in gs.list_objectives()
        for who in (*IDS, PLAIN_TORCH)
        if who != PLAIN_TORCH or info.name in PLAIN
    ]


def measure(case: Case, device: str) -> Measurement:
    return Measurement(numbers={k: float(v) for k, v in asdict(count(call(case, device))).items()})


def call(case: Case, device: str) -> Step:
    """Make a call of forward + backward to both embeddings, in bfloat16."""
    b = bfloat16_batch(case, COSINE, device)
    ids = {
        "ids on the GPU": (b.image_ids, b.text_ids),
        "ids on the CPU": (b.image_ids.cpu(), b.text_ids.cpu()),
    }.get(case.who, ())
    ours = gs.RetrievalLoss(case.what, checks=False, normalize=False)
    loss = PLAIN[case.what] if case.who == PLAIN_TORCH else ours

    def forward_and_backward() -> tuple[torch.Tensor, ...]:
        value = loss(b.images, b.texts, *ids)
        return value.detach(), *torch.autograd.grad(value, (b.images, b.texts))

    return forward_and_backward


def tables(found: Results) -> list[Table]:
    ours = [case for case in found.of(SUITE) if case.who == IDS[0]]
    if not ours:
        return []
    title = f"Launches and synchronisations of one call, {ours[0].images} pairs"
    kinds = ("launches", "synchronisations", "copies_to_host")
    columns = [
        *(f"launches, {who}" for who in (*IDS, PLAIN_TORCH)),
        *(f"{kind.replace('_', ' ')}, {who}" for kind in kinds[1:] for who in IDS),
    ]
    rows = []
    for case in ours:
        by_who = {who: found.measured.get(replace(case, who=who)) for who in (*IDS, PLAIN_TORCH)}
        launches = [_number(m, kinds[0]) for m in by_who.values()]
        others = [_number(by_who[who], kind) for kind in kinds[1:] for who in IDS]
        rows.append([case.what, *launches, *others])
    return [Table(title, ["objective", *columns], rows, _finding(found))]


def _number(m: Measurement | None, kind: str) -> str:
    if m is None:
        return "-"
    return m.failure or f"{m.numbers[kind]:.0f}"


def _finding(found: Results) -> str:
    cases = [case for case in found.of(SUITE) if case.who != PLAIN_TORCH]
    counted = {c: found.measured[c].numbers for c in cases if not found.measured[c].failure}
    failed = len(cases) - len(counted)
    parts = [f"Target: at most {MOST_LAUNCHES} launches, no synchronisation."]
    for kind, limit in (("launches", MOST_LAUNCHES), ("synchronisations", 0)):
        over = {c: n[kind] for c, n in counted.items() if n[kind] > limit}
        few = f"at most {limit} {kind}" if limit else f"no {kind}"
        text = f"{len(counted) - len(over)} of {len(cases)} calls have {few}"
        if over:
            worst = max(over, key=lambda c: over[c])
            text += f", the most has {worst.what}, {worst.who}: {over[worst]:.0f}"
        parts.append(f"{text}.")
    return " ".join([*parts, f"{failed} could not be counted."] if failed else parts)
