"""Duration of a training step of a run (AOQ supplement, Table 3)."""

from __future__ import annotations

import tempfile
import time
from itertools import islice, pairwise
from pathlib import Path
from statistics import median

import torch

from gradspace.data.dataset import Dataset
from gradspace.files import link_or_copy
from gradspace.runs.folder import Run
from gradspace.runs.system import new_system
from gradspace.training.loop import Trainer
from gradspace.training.monitor import Monitor

WARM_UP, TIMED = 5, 20


def seconds_per_batch(run: Run, dataset: Dataset, device: torch.device) -> float:
    """Measure the median over some steps of a new model with a run's recipe, loading included.

    Other runs on the same machine disturb the measurement.
    """
    recipe = run.recipe()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Run(Path(folder))
        if run.offline.exists():
            link_or_copy(run.offline, scratch.offline)
        system = new_system(recipe, dataset, scratch, device)
        trainer = Trainer(recipe, dataset, system, scratch, Monitor(None, 0))
        system.model.train()
        ends = [time.perf_counter()]
        for batch in islice(trainer.batches(), WARM_UP + TIMED):
            float(trainer.train_on(batch))  # which waits for the device
            ends.append(time.perf_counter())
    taken = [end - start for start, end in pairwise(ends)]
    return median(taken[WARM_UP:] or taken)
