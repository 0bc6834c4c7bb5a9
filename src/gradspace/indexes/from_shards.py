"""Index made from shards of embeddings, in any engine, without embedding again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradspace.indexes.build import MOST_PER_SAVE, IndexUpdate, writing
from gradspace.indexes.index import Index, make_index, model_digest
from gradspace.indexes.shards import Shard, complete_plan, open_shard
from gradspace.progress import Show


def index_shards(
    embeddings: Path,
    model: Path,
    out: Path,
    *,
    name: str | None = None,
    engine: str | None = None,
    show: Show,
) -> tuple[Index, IndexUpdate]:
    """Bring an index up to date with embeddings that `gradspace embed --shards` has written."""
    plan = complete_plan(embeddings)
    if model_digest(model) != plan.digest:
        raise ValueError(
            f"{embeddings} has embeddings of {plan.model}, not of {model}: vectors of two models "
            "cannot be compared"
        )
    shards = [open_shard(path, plan) for path in plan.shards(embeddings)]
    index = make_index(
        out, model, plan.width, plan.collection, plan.kinds, name=name, engine=engine
    )
    with show("indexing") as progress, writing(index):
        update = _Update(index, shards)
        for done, shard in enumerate(shards):
            progress(done, plan.num_shards)
            update.put(shard)
        progress(plan.num_shards, plan.num_shards)
    return index, update.outcome


class _Update:
    """Adds new and changed items, and removes missing ones."""

    def __init__(self, index: Index, shards: list[Shard]) -> None:
        self.index = index
        self.known = index.engine.fingerprints()
        self.outcome = IndexUpdate()
        keys = {key for shard in shards for key in shard.table["key"].to_pylist()}
        gone = sorted(self.known.keys() - keys)
        if gone:
            index.engine.remove(gone)
            self._forget_thumbnails(gone)
        self.outcome.removed = len(gone)

    def put(self, shard: Shard) -> None:
        shard.check()
        self.outcome.broken += shard.record["broken"]
        keys, prints = (shard.table[name].to_pylist() for name in ("key", "fingerprint"))
        pairs = enumerate(zip(keys, prints, strict=True))
        new = [row for row, (key, stamp) in pairs if self.known.get(key) != stamp]
        changed = [keys[row] for row in new if keys[row] in self.known]
        self.outcome.changed += len(changed)
        self.outcome.added += len(new) - len(changed)
        self.outcome.unchanged += len(keys) - len(new)
        self._forget_thumbnails(changed)
        for start in range(0, len(new), MOST_PER_SAVE):
            rows: NDArray[np.int64] = np.array(new[start : start + MOST_PER_SAVE], np.int64)
            self.index.engine.put(shard.items(rows), shard.vectors[rows])

    def _forget_thumbnails(self, keys: list[str]) -> None:
        for key in keys:
            self.index.thumbnails.remove(key)
