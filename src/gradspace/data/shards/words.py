"""Vocabulary of a stream: the words of a bounded part of its captions, counted once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import numpy as np

from gradspace.data.cache import cache_folder, locked_in_cache
from gradspace.data.shards.reading import UnusableSample
from gradspace.data.shards.stream import ShardStream
from gradspace.data.vocabulary import Vocabulary
from gradspace.progress import Progress


def stream_vocabulary(
    stream: ShardStream, *, punctuation: bool, mask: bool, progress: Progress | None = None
) -> Vocabulary:
    """Count the words of `vocabulary_samples` samples of random shards, or load a cached result."""
    cached = _cached(stream, punctuation, mask)
    with locked_in_cache(cached):  # all processes of a run need it
        if not cached.exists():
            captions = _captions(stream, progress)
            Vocabulary.build(captions, punctuation=punctuation, mask=mask).save(cached)
    return Vocabulary.load(cached)


def _cached(stream: ShardStream, punctuation: bool, mask: bool) -> Path:
    shards = [(source.identity, source.num_bytes) for source in stream.shards.sources]
    known = [shards, stream.vocabulary_samples, punctuation, mask]
    name = blake2b(json.dumps(known).encode(), digest_size=16).hexdigest()
    return cache_folder() / "vocabularies" / f"{name}.json"


def _captions(stream: ShardStream, progress: Progress | None) -> Iterator[str]:
    """Yield captions of that many samples, from random shards, as neighbours may be of one kind."""
    shards, done = stream.shards, 0
    for read, shard in enumerate(np.random.default_rng(0).permutation(len(shards)).tolist()):
        for number in range(len(shards.index(shard))):
            if done == stream.vocabulary_samples:
                return
            try:
                yield from shards.captions(shard, number)
            except UnusableSample:  # training reports it
                continue
            done += 1
        if progress:
            share = max(done / stream.vocabulary_samples, (read + 1) / len(shards))
            progress(round(1000 * share), 1000)
