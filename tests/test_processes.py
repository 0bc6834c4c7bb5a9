"""Tests of what processes do alike: memory that is kept, and who reports a failure."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections import Counter

import pytest
import torch.distributed as dist

from gradspace.processes import _speaks

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


class CountingStore(Counter[str]):
    """A store that several processes would share, in one process."""

    def add(self, key: str, number: int) -> int:
        self[key] += number
        return self[key]


@pytest.mark.parametrize(
    ("failures", "speaking"),
    [
        # machine, process there, and whether another process was lost
        ([("0", 0, True), ("0", 1, True), ("1", 0, True), ("1", 1, True)], [0, 2]),
        ([("1", 1, False), ("1", 0, True), ("0", 1, True), ("0", 0, True)], [0, 2]),
        ([("0", 1, False), ("1", 0, False), ("0", 0, False), ("1", 1, True)], [0]),
    ],
)
def test_one_process_of_each_machine_reports_a_failure(
    failures: list[tuple[str, int, bool]], speaking: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And an error that all of them have is reported once."""
    store = CountingStore()
    said = []
    for number, (machine, process, lost) in enumerate(failures):
        monkeypatch.setenv("GROUP_RANK", machine)
        monkeypatch.setenv("LOCAL_RANK", str(process))
        if _speaks(store, lost):
            said.append(number)
    assert said == speaking


@pytest.mark.parametrize("process", [0, 1])
def test_without_the_first_machine_one_process_speaks(
    process: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone:
        def add(self, key: str, number: int) -> int:
            raise dist.DistNetworkError("Broken pipe")

    monkeypatch.setenv("LOCAL_RANK", str(process))
    assert _speaks(Gone(), True) == (process == 0)
