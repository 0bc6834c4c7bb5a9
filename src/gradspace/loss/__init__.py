"""`RetrievalLoss`: an objective on a batch, optionally with a memory and mined negatives."""

from gradspace.loss.mined import Offline
from gradspace.loss.retrieval_loss import RetrievalLoss

__all__ = ["Offline", "RetrievalLoss"]
