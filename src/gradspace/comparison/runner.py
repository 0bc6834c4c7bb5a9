"""Runs side by side: as many processes as there is room for, each with a run of its own."""

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

GPU_SHARE = 0.9
"""Of the memory of a GPU that runs may fill."""
GPU_CONTEXT = 600 * 2**20
"""Bytes that every process takes of a GPU before it has a tensor."""
ENDED = ("finished", "failed", "stopped")
"""States of a job that will not change any more."""
PATIENCE = 60.0
"""Seconds that runs have to save their work when they are asked to stop."""


@dataclass
class Job:
    """A task, and how far it is."""

    task: Task
    state: str = "waiting"
    """waiting, running, finished, failed or stopped"""
    share: float = 0.0
    rsum: float | None = None
    problem: str = ""


@dataclass(eq=False)
class Process:
    """A worker, what it listens to, and the job that it is at."""

    process: BaseProcess
    connection: Connection
    device: torch.device
    job: Job | None = None
    memory: int = 0
    told_to_stop: bool = False


@dataclass
class Runner:
    """Trains, evaluates and analyses tasks; calls `show` whenever something has changed.

    On a GPU one run starts alone; the memory it has used after its first messages says how many
    fit beside it.
    """

    devices: Sequence[torch.device]
    most: int | None = None
    """Runs at a time; as many as there is room for where it is not given."""
    workers: list[Process] = field(default_factory=list)

    def run(
        self,
        tasks: Sequence[Task],
        show: Callable[[Sequence[Job]], None],
        more: Callable[[], Sequence[Task]] = tuple,
    ) -> list[Job]:
        """Every task with its outcome; stops early, without loss, on Ctrl-C or SIGTERM.

        `more` is asked for further tasks at the start, and whenever one has ended.
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
        """Give the next jobs to idle workers, and start workers where there is room."""
        for job in _ready(jobs):
            worker = next((w for w in self.workers if w.job is None), None) or self._start()
            if worker is None:
                return
            worker.job, job.state = job, "running"
            worker.connection.send(job.task)

    def _start(self) -> Process | None:
        """A new worker on the device that has the fewest, if there is room for one more."""
        counts = {device: sum(w.device == device for w in self.workers) for device in self.devices}
        device = min(self.devices, key=lambda device: counts[device])
        cores = os.cpu_count() or 1
        most = cores if self.most is None else self.most
        if len(self.workers) >= most or (
            self.most is None and counts[device] >= self._room(device)
        ):
            return None
        here, there = multiprocessing.get_context("spawn").Pipe()
        at_once = min(most, cores) if device.type == "cpu" else most
        arguments = (there, device, max(1, cores // at_once), imported(by_workers=True))
        process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
        with withheld():
            process.start()
        there.close()
        self.workers.append(Process(process, here, device))
        return self.workers[-1]

    def _room(self, device: torch.device) -> int:
        """How many runs fit on a device, as far as is known."""
        if device.type == "cpu":
            return os.cpu_count() or 1
        used = max((w.memory for w in self.workers if w.device == device), default=0)
        if not used:
            return 1
        total = torch.cuda.get_device_properties(device).total_memory
        return max(1, int(GPU_SHARE * total / (used + GPU_CONTEXT)))

    def _listen(self, seconds: float) -> None:
        """Take in what the workers say, and notice those that have died."""
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
        worker.job.problem = f"its process was ended (exit code {code}), maybe for lack of memory"

    def _stop(self, jobs: Sequence[Job]) -> None:
        """Ask every run to save and stop, and wait until they have."""
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
            worker.connection.close()  # which an idle worker takes as the end
            if worker.job is not None:
                worker.process.kill()
            worker.process.join()
        self.workers.clear()


def _ready(jobs: Sequence[Job]) -> Iterator[Job]:
    """Waiting jobs whose first round is done; those whose first round has failed fail too."""
    states = {job.task.folder: job.state for job in jobs}
    for job in (job for job in jobs if job.state == "waiting"):
        first = states.get(job.task.first) if job.task.first else None
        if first == "failed":
            job.state, job.problem = "failed", f"its first round, {job.task.first}, has failed"
        elif first in (None, "finished"):
            yield job
