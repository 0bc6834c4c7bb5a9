"""Offline hard negatives: mined over a whole training set, and drawn during training (AOQ).

top.py          exact lists of hardest negatives, streamed, distributed, resumable
own.py          the pairs that belong together, and are never listed
state.py        progress of an interrupted mining, on disk
lists.py        `MinedLists`: in memory and as a file
mine.py         from embeddings to a file
reranking.py    lists of a model that scores pairs, among the proposals of another one
approximate.py  approximate lists, from an index of faiss
sampling.py     the offline negatives of a training batch
audit.py        counts of false negatives among the listed ones, and suspects
closeness.py    similarity of captions
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
