"""Large tensors, one after the other."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

COUNT_PAGE_FAULTS = """
import resource, sys, torch
from gradspace.processes import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
for number in range(20):
    if number == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(16 * 2**20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how: str) -> int:
    """Count page faults of ten tensors of 64 MiB, after ten others."""
    command = [sys.executable, "-c", COUNT_PAGE_FAULTS, how]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
@pytest.mark.slow
def test_a_tensor_takes_the_place_of_the_one_before() -> None:
    assert page_faults("keep") < page_faults("give back") / 2
