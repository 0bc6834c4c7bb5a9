"""Parallel runs: as many processes as fit, with one run each."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch

from gradspace.comparison.worker import Finished, Stopped, Task, Working, work
from gradspace.interrupts import withheld
from gradspace.plugins import imported
from gradspace.training.stopping import stop_signals

PROCESSES = multiprocessing.get_context("spawn")
"""Workers are no copies of this process, which may have used a GPU."""
GPU_SHARE = 0.9
"""Share of a GPU's memory that runs may fill."""
GPU_CONTEXT = 600 * 2**20
"""Bytes that a process needs on a GPU before its first tensor."""
ENDED = ("finished", "failed", "stopped")
"""Final states of a job."""
PATIENCE = 60.0
"""Seconds that runs have to save their work when asked to stop."""


@dataclass
class Job:
    """A task and its progress."""

    task: Task
    state: str = "waiting"
    """State: waiting, running, finished, failed or stopped."""
    share: float = 0.0
    rsum: float | None = None
    problem: str = ""


@dataclass(eq=False)
class Process:
    """A worker, its connection, and its current job."""

    process: BaseProcess
    connection: Connection
    device: torch.device
    job: Job | None = None
    memory: int = 0
    told_to_stop: bool = False


@dataclass
class Runner:
    """Trains, evaluates and analyses tasks; calls `show` after every change.

    On a GPU one run starts alone; the memory it uses after its first messages tells how many fit
    beside it.
    """

    devices: Sequence[torch.device]
    most: int | None = None
    """Largest number of runs at a time; by default as many as fit."""
    workers: list[Process] = field(default_factory=list)

    def run(
        self,
        tasks: Sequence[Task],
        show: Callable[[Sequence[Job]], None],
        more: Callable[[], Sequence[Task]] = tuple,
    ) -> list[Job]:
        """Run every task, and return its outcome; stops early, without loss, on Ctrl-C or SIGTERM.

        `more` is called for further tasks at the start, and whenever a task has ended.
        """
        jobs = [Job(task) for task in tasks]
        ended = None
        with stop_signals() as stopping:
            try:
                while True:
                    before, ended = ended, sum(job.state in ENDED for job in jobs)
                    if ended != before:
                        jobs += [Job(task) for task in more()]
                    if ended == len(jobs):
                        break
                    if stopping.requested:
                        self._stop(jobs)
                        break
                    self._fill(jobs)
                    self._listen(0.2)
                    show(jobs)
            finally:
                self._end()
        show(jobs)
        return jobs

    def _fill(self, jobs: Sequence[Job]) -> None:
        """Give the next jobs to idle workers, and start workers if there is room."""
        for job in _ready(jobs):
            worker = next((w for w in self.workers if w.job is None), None) or self._start()
            if worker is None:
                return
            worker.job, job.state = job, "running"
            worker.connection.send(job.task)

    def _start(self) -> Process | None:
        """Start a worker on the device with the fewest, if there is room for one more."""
        counts = {device: sum(w.device == device for w in self.workers) for device in self.devices}
        device = min(self.devices, key=lambda device: counts[device])
        cores = os.cpu_count() or 1
        most = cores if self.most is None else self.most
        if len(self.workers) >= most or (
            self.most is None and counts[device] >= self._room(device)
        ):
            return None
        here, there = PROCESSES.Pipe()
        at_once = min(most, cores) if device.type == "cpu" else most
        arguments = (there, device, max(1, cores // at_once), imported(by_workers=True))
        process = PROCESSES.Process(target=work, args=arguments)
        with withheld():
            process.start()
        there.close()
        self.workers.append(Process(process, here, device))
        return self.workers[-1]

    def _room(self, device: torch.device) -> int:
        """Estimate how many runs fit on a device."""
        if device.type == "cpu":
            return os.cpu_count() or 1
        used = max((w.memory for w in self.workers if w.device == device), default=0)
        if not used:
            return 1
        total = torch.cuda.get_device_properties(device).total_memory
        return max(1, int(GPU_SHARE * total / (used + GPU_CONTEXT)))

    def _listen(self, seconds: float) -> None:
        """Process messages of the workers, and detect workers that have died."""
        ready = wait([worker.connection for worker in self.workers], seconds)
        for worker in [worker for worker in self.workers if worker.connection in ready]:
            try:
                self._take(worker, worker.connection.recv())
            except (EOFError, ConnectionError):
                self._lost(worker)

    def _take(self, worker: Process, said: Working | Finished | Stopped) -> None:
        job = worker.job
        assert job is not None
        match said:
            case Working(share, rsum, memory):
                job.share, job.rsum, worker.memory = share, rsum, max(memory, worker.memory)
            case Finished(problem):
                job.state = "failed" if problem else "finished"
                job.share, job.problem, worker.job = 1.0, problem or "", None
            case Stopped():
                job.state, worker.job = "stopped", None

    def _lost(self, worker: Process) -> None:
        worker.process.join()
        self.workers.remove(worker)
        if worker.job is None:
            return
        if worker.told_to_stop:
            worker.job.state = "stopped"
            return
        worker.job.state = "failed"
        code = worker.process.exitcode
        worker.job.problem = f"its process was killed (exit code {code}), maybe for lack of memory"

    def _stop(self, jobs: Sequence[Job]) -> None:
        """Ask every run to save and stop, and wait for it."""
        for worker in self.workers:
            worker.told_to_stop = True
            if worker.job is not None:
                worker.process.terminate()
        until = time.monotonic() + PATIENCE
        while any(w.job for w in self.workers) and time.monotonic() < until:
            self._listen(0.2)
        for job in jobs:
            if job.state == "running":
                job.state = "stopped"

    def _end(self) -> None:
        for worker in self.workers:
            worker.connection.close()  # which ends an idle worker
            if worker.job is not None:
                worker.process.kill()
            worker.process.join()
        self.workers.clear()


def _ready(jobs: Sequence[Job]) -> Iterator[Job]:
    """Yield waiting jobs whose first round is done; fail those whose first round has failed."""
    states = {job.task.folder: job.state for job in jobs}
    for job in (job for job in jobs if job.state == "waiting"):
        first = states.get(job.task.first) if job.task.first else None
        if first == "failed":
            job.state, job.problem = "failed", f"its first round, {job.task.first}, has failed"
        elif first in (None, "finished"):
            yield job
