"""Processes for single cases, so that none inherits the memory of another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.case import Case, Measurement
from benchmarks.measure import GIBIBYTES_PER_CALL, SECONDS_PER_CALL, THREADS

ROOT = Path(__file__).parents[1]
# For libraries that do not use torch's number of threads.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def run(case: Case) -> Measurement:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.measure", json.dumps(asdict(case))],
        cwd=ROOT,
        env=os.environ | dict.fromkeys(THREAD_VARIABLES, str(THREADS)),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == -signal.SIGALRM:
        return Measurement(failure=f"over {SECONDS_PER_CALL} s")
    if done.returncode == -signal.SIGKILL:  # by the system, with less memory than the limit
        return Measurement(failure=f"killed below {GIBIBYTES_PER_CALL} GiB")
    if done.returncode:
        raise RuntimeError(f"{case} failed ({done.returncode}):\n{done.stderr[-4000:]}")
    return Measurement(**json.loads(done.stdout.splitlines()[-1]))
