"""Trackers: destinations of a training's numbers besides metrics.jsonl.

A tracker is a context manager that gets the run and yields a function of numbers and their step.
`training.trackers` of the recipe names those to use; a decorated function adds another one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from gradspace.commands import pip_install
from gradspace.files import write_atomically
from gradspace.plugins import admit, load_installed
from gradspace.runs.folder import Run

Track = Callable[[Mapping[str, float], int], object]
"""Function of numbers by name, such as `dev/rsum`, and the step they were measured at."""
OpenTracker = Callable[[Run], AbstractContextManager[Track]]

TRACKERS: dict[str, OpenTracker] = {}


def tracker(name: str) -> Callable[[OpenTracker], OpenTracker]:
    """Register a context manager as the tracker of that name."""

    def register(build: OpenTracker) -> OpenTracker:
        admit(name, build, TRACKERS.get(name))
        TRACKERS[name] = build
        return build

    return register


def open_tracker(name: str, run: Run) -> AbstractContextManager[Track]:
    """Open a tracker by name; a ValueError if it is unknown or its package is missing."""
    if name not in TRACKERS:
        load_installed()
    if name not in TRACKERS:
        raise ValueError(
            f"training.trackers: unknown tracker {name!r}; use one of {', '.join(sorted(TRACKERS))}"
        )
    return TRACKERS[name](run)


@tracker("tensorboard")
@contextmanager
def tensorboard(run: Run) -> Iterator[Track]:
    """Write TensorBoard events into the folder of the run."""
    with _needs("TensorBoard", "tracking"):
        from torch.utils.tensorboard import SummaryWriter

    def track(numbers: Mapping[str, float], step: int) -> None:
        for name, number in numbers.items():
            events.add_scalar(name, number, step)

    events: Any
    with SummaryWriter(run.folder) as events:
        yield track


@tracker("wandb")
@contextmanager
def wandb(run: Run) -> Iterator[Track]:
    """Log to Weights & Biases, configured by its own settings and variables (WANDB_...)."""
    with _needs("Weights & Biases", "wandb"):
        import wandb as client

    with client.init(
        project="gradspace",
        name=run.folder.name,
        id=_known_id(run, "wandb"),
        resume="allow",
        dir=run.folder,
        config=run.recipe().model_dump(mode="json"),
    ) as session:
        _remember_id(run, "wandb", session.id)
        yield lambda numbers, step: session.log(dict(numbers), step=step)


@tracker("mlflow")
@contextmanager
def mlflow(run: Run) -> Iterator[Track]:
    """Log to MLflow, at the address in MLFLOW_TRACKING_URI."""
    with _needs("MLflow", "mlflow"):
        import mlflow as client

    known = _known_id(run, "mlflow")
    with client.start_run(run_id=known, run_name=run.folder.name) as session:
        if known is None:
            _remember_id(run, "mlflow", session.info.run_id)
            client.log_params(dict(_leaves(run.recipe().model_dump(mode="json"))))

        def track(numbers: Mapping[str, float], step: int) -> None:
            allowed = {re.sub(r"[^\w. :/-]", "_", name): value for name, value in numbers.items()}
            client.log_metrics(allowed, step=step)

        yield track


@contextmanager
def _needs(name: str, extra: str) -> Iterator[None]:
    try:
        yield
    except ImportError:
        raise ValueError(
            f"training.trackers needs {name}: {pip_install(f'gradspace[{extra}]')}"
        ) from None


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of nested tables with its dotted key, such as `model.width`."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


# --- resumed sessions ----------------------------------------------------------------------------


def _ids_file(run: Run) -> Path:
    return run.folder / "trackers.json"


def _ids(run: Run) -> dict[str, str]:
    file = _ids_file(run)
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def _known_id(run: Run, name: str) -> str | None:
    """Return the session of an earlier part of this training, to be continued."""
    return _ids(run).get(name)


def _remember_id(run: Run, name: str, session: str) -> None:
    with write_atomically(_ids_file(run)) as file:
        json.dump(_ids(run) | {name: session}, file)
