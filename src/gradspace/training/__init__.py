"""Training: the loop, its schedule, and the checks that stop a run that has failed."""

from gradspace.training.loop import train_run

__all__ = ["train_run"]
