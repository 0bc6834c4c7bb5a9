"""Offline hard negatives: mined over a whole training set, drawn from during training (AOQ).

top.py          exact lists of hardest negatives, streamed, by several processes, resumable
running.py      the highest scores so far, with a fixed order of equal ones
own.py          the pairs that belong together, and are never listed
state.py        what an interrupted mining has done
lists.py        `MinedLists`: in memory and as a file
mine.py         from embeddings to a file
reranking.py    the lists of a model that scores pairs, among what another one proposes
approximate.py  the same lists, nearly, from an index of faiss
sampling.py     the offline negatives of a training batch
audit.py        which of the listed negatives are none, and how many
closeness.py    which captions say nearly the same
"""

from gradspace.mining.approximate import mine_with_faiss
from gradspace.mining.audit import (
    ComparedSuspect,
    FalseNegatives,
    RankedShare,
    Suspect,
    Suspects,
    false_negative_rate,
    find_suspects,
    most_suspicious,
)
from gradspace.mining.lists import MinedLists, load_lists, save_lists
from gradspace.mining.mine import mine_to_file
from gradspace.mining.reranking import mine_proposed
from gradspace.mining.sampling import OfflineDraw, Sampling, draw_offline
from gradspace.mining.top import mine_exact

__all__ = [
    "ComparedSuspect",
    "FalseNegatives",
    "MinedLists",
    "OfflineDraw",
    "RankedShare",
    "Sampling",
    "Suspect",
    "Suspects",
    "draw_offline",
    "false_negative_rate",
    "find_suspects",
    "load_lists",
    "mine_exact",
    "mine_proposed",
    "mine_to_file",
    "mine_with_faiss",
    "most_suspicious",
    "save_lists",
]
