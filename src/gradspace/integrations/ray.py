"""Embedding shards on a Ray cluster: `map_batches` of Ray Data over the numbers of the shards.

    ray.init(address="auto")
    embed_with_ray("runs/clip", "/shared/photos", out="/shared/embedded", shards=1000, actors=16,
                   num_gpus=1)

The folder is that of `gradspace embed --shards`, which all machines of the cluster share.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import ray
import ray.data

from gradspace.indexes.fill import WAIT, Filled, Filling
from gradspace.indexes.make import collection_of
from gradspace.indexes.shards import write_manifest
from gradspace.runs.model import load


def embed_with_ray(
    model: str | Path,
    source: str | Path | None = None,
    *,
    out: str | Path,
    shards: int | None = None,
    split: str | None = None,
    features: str | Path | None = None,
    actors: int = 1,
    **resources: Any,
) -> Filled:
    """Fill a folder with embeddings by actors that each hold the model.

    Args:
        source, shards, split, features: as of `embed_shards`.
        actors: how many fill shards at the same time.
        resources: of one actor, as `map_batches` takes them: num_gpus=1, num_cpus=4.
    """
    given = {"model": model, "source": source, "out": out, "split": split, "features": features}
    here = _begin({**given, "shards": shards}, device="cpu")
    own = 0
    while missing := here.missing():
        numbers = ray.data.from_items([{"number": number} for number in missing])
        done = numbers.map_batches(
            _Filler,
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=min(actors, len(missing))),
            fn_constructor_kwargs={"given": {**given, "shards": here.plan.num_shards}},
            **resources,
        )
        filled = sum(bool(row["filled"]) for row in done.take_all())
        own += filled
        if not filled:
            time.sleep(WAIT)  # processes outside of Ray are at it, or were lost
    return Filled(here.plan, own, write_manifest(here.folder, here.plan))


def _begin(given: dict[str, Any], device: str | None = None) -> Filling:
    loaded = load(given["model"], device)
    collection = collection_of(
        loaded.source, given["source"], given["split"], None, given["features"]
    )
    return Filling.begin(Path(given["out"]), loaded, collection, given["shards"])


class _Filler:
    """An actor, which loads the model once."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.filling = _begin(given)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"filled": [self.filling.fill(int(number)) for number in batch["number"]]}
