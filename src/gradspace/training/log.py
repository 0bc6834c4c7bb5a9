"""Log of a training: measurements are written to metrics.jsonl, and sent to the run's trackers."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from gradspace import processes
from gradspace.runs.folder import Run
from gradspace.training.trackers import Track, open_tracker


class TrainingLog:
    """Log of measurements; only the first process writes."""

    def __init__(self, run: Run, trackers: Iterable[Track] = ()) -> None:
        self.run = run
        self.trackers = list(trackers)

    def start(self) -> None:
        """Delete the lines of a run that was killed before its first checkpoint."""
        if processes.is_first():
            self.run.metrics_file.unlink(missing_ok=True)

    def write(self, **values: Any) -> None:
        if not processes.is_first():
            return
        self.run.log(**values)
        numbers = dict(_numbers(values))
        for track in list(self.trackers):
            try:
                track(numbers, values["step"])
            except Exception as error:  # an unreachable server must not end a training
                self.trackers.remove(track)
                warnings.warn(
                    f"a tracker failed and is left out from now on ({_first_line(error)}); "
                    f"{self.run.metrics_file} has every measurement",
                    stacklevel=2,
                )


@contextmanager
def open_log(run: Run, names: Sequence[str], own: Track | None) -> Iterator[TrainingLog]:
    """Open trackers by name, add the user's own, and close them when training stops."""
    with ExitStack() as stack:
        trackers = [own] if own else []
        for name in names if processes.is_first() else ():
            try:
                trackers.append(stack.enter_context(open_tracker(name, run)))
            except ValueError:
                raise
            except Exception as error:
                raise ValueError(f"{name} cannot track this run: {_first_line(error)}") from error
        yield TrainingLog(run, trackers)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _numbers(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number in nested values with its path, such as `dev/text_to_image/recall/1`."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and name != "step":
            yield f"{prefix}{name}", value
