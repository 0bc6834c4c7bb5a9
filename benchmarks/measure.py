"""Measure one case in this process: `python -m benchmarks.measure '{"suite": "losses", ...}'`.

Prints a `Measurement` as one line of JSON. A call that takes too long ends the process by SIGALRM.
"""

from __future__ import annotations

import ctypes
import gc
import json
import resource
import signal
import statistics
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import torch

from benchmarks import evaluation, losses, mining, pairs, readers, scale, search, training
from benchmarks.case import Call, Case, Measurement, Run

THREADS = 2
SECONDS_PER_CALL = 120
GIBIBYTES_PER_CALL = 16
SECONDS_OF_REPEATS = 10
MOST_REPEATS = 9
MEASURED_ONCE = 30
"""Seconds beyond which a first call is not repeated."""

PREPARE = {
    "losses": losses.prepare,
    "scale": scale.prepare,
    "evaluation": evaluation.prepare,
    "mining": mining.prepare,
    "training": training.prepare,
    "pairs": pairs.prepare,
    "search": search.prepare,
    "readers": readers.prepare,
}


def measure(case: Case, *, threads: int = THREADS, most_repeats: int = MOST_REPEATS) -> Measurement:
    torch.set_num_threads(threads)
    gc.freeze()  # imported modules stay, and searching them for garbage takes long
    prepare = PREPARE[case.suite]
    # Libraries load and allocate on first use, which should not count as the case's memory.
    prepare(replace(case, images=min(case.images, 8))).run()
    call = prepare(case)
    _limit_memory()
    try:
        return _measure(call, most_repeats)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        return Measurement(failure=f"over {GIBIBYTES_PER_CALL} GiB")
    finally:
        gc.unfreeze()


def _measure(call: Call, most_repeats: int) -> Measurement:
    """Measure the peak memory of the first run, and the median time of those after it."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # freed memory that is kept for reuse would hide new needs
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak, VmHWM
    first, numbers = _timed(call.run)
    megabytes = (_status("VmHWM") - before) / 1e6
    times = [first]
    if first < MEASURED_ONCE:
        repeats = min(max(int(SECONDS_OF_REPEATS / first), 1), most_repeats)
        times = [_timed(call.run)[0] for _ in range(repeats)]
    fixed = min(_timed(call.fixed)[0] for _ in range(3)) if call.fixed else 0.0
    median, fastest = (call.whole(t, fixed) for t in (statistics.median(times), min(times)))
    return Measurement(median, fastest, megabytes, call.share, numbers=numbers)


def _timed(run: Run) -> tuple[float, dict[str, float]]:
    signal.setitimer(signal.ITIMER_REAL, SECONDS_PER_CALL)
    start = time.perf_counter()
    numbers = run()
    seconds = time.perf_counter() - start
    signal.setitimer(signal.ITIMER_REAL, 0)
    return seconds, numbers


def _limit_memory() -> None:
    limit = _status("VmSize") + GIBIBYTES_PER_CALL * 2**30
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _status(name: str) -> int:
    """Read a size of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {name}: the benchmarks need Linux")


if __name__ == "__main__":
    print(json.dumps(asdict(measure(Case(**json.loads(sys.argv[1]))))))
