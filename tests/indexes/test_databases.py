"""What is true of one database alone: transactions, connections, limits, what is left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from indexes.servers import postgres_url  # noqa: F401
from numpy.typing import NDArray

from gradspace.indexes.contract import Item
from gradspace.indexes.engines import open_engine
from gradspace.indexes.where import parse_condition

pytest.importorskip("pgvector")
pytest.importorskip("psycopg")
pytest.importorskip("milvus_lite")
import psycopg

from gradspace.indexes import milvus, postgres
from gradspace.indexes.milvus import MilvusEngine
from gradspace.indexes.postgres import PostgresEngine

WIDTH = 16


def items(count: int, start: int = 0) -> list[Item]:
    return [Item(f"{n}.jpg", "image", metadata={"n": n}) for n in range(start, start + count)]


def unit_vectors(count: int, seed: int = 0) -> NDArray[np.float32]:
    vectors = np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


@pytest.fixture
def collection(postgres_url: str) -> Iterator[str]:  # noqa: F811
    """A name, whose table is gone after the test."""
    yield "photos"
    with psycopg.connect(postgres_url) as connection:
        connection.execute("DROP TABLE IF EXISTS gradspace_photos")


def test_a_put_that_fails_changes_nothing(
    postgres_url: str,  # noqa: F811
    collection: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = PostgresEngine(postgres_url, collection, WIDTH)
    engine.put(items(3), unit_vectors(3))
    whole = postgres._row

    def broken(item: Item, vector: NDArray[np.float16]) -> Any:
        if item.key == "4.jpg":
            raise KeyboardInterrupt
        return whole(item, vector)

    with monkeypatch.context() as patched:
        patched.setattr(postgres, "_row", broken)
        with pytest.raises(KeyboardInterrupt):
            engine.put(items(5), unit_vectors(5, seed=1))
    assert set(engine.fingerprints()) == {"0.jpg", "1.jpg", "2.jpg"}
    found = engine.get(["1.jpg"])[0]
    assert found is not None
    np.testing.assert_array_equal(found[1], unit_vectors(3)[1].astype(np.float16))
    engine.put(items(5), unit_vectors(5))
    assert len(engine) == 5
    engine.close()


def test_readers_see_all_of_a_put_or_nothing(postgres_url: str, collection: str) -> None:  # noqa: F811
    writer = PostgresEngine(postgres_url, collection, WIDTH)
    writer.put(items(4), unit_vectors(4))
    reader = PostgresEngine(postgres_url, collection, WIDTH)
    with writer._transaction() as connection:
        writer._remove(connection, ["0.jpg", "1.jpg", "2.jpg"])
        assert len(reader) == 4
        assert len(reader.search(unit_vectors(1), 9, "image")[0]) == 4
    assert len(reader) == 1
    writer.close()
    reader.close()


def test_threads_share_an_engine(postgres_url: str, collection: str) -> None:  # noqa: F811
    engine = PostgresEngine(postgres_url, collection, WIDTH)
    engine.put(items(50), unit_vectors(50))
    vectors = unit_vectors(50)

    def own(number: int) -> str:
        return engine.search(vectors[number : number + 1], 1, "image")[0][0].item.key

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(own, range(50))) == [f"{n}.jpg" for n in range(50)]
    engine.close()


def test_a_lost_connection_is_made_anew(postgres_url: str, collection: str) -> None:  # noqa: F811
    engine = PostgresEngine(postgres_url, collection, WIDTH)
    engine.put(items(2), unit_vectors(2))
    with psycopg.connect(postgres_url) as connection:
        connection.execute("SELECT pg_terminate_backend(%s)", [engine._connection.info.backend_pid])
    with pytest.raises(ValueError, match=r"no connection to PostgreSQL at .*, database postgres: "):
        len(engine)
    assert len(engine) == 2
    assert len(engine.search(unit_vectors(1), 5, "image")[0]) == 2
    engine.close()


@pytest.mark.slow
def test_hnsw_is_used_and_still_finds_all_that_fits(postgres_url: str, collection: str) -> None:  # noqa: F811
    """Where few of many meet a condition, the index alone would find too little."""
    vectors = unit_vectors(4000)
    engine = PostgresEngine(postgres_url, collection, WIDTH)
    engine.put(items(4000), vectors)
    engine.close()
    engine = PostgresEngine(postgres_url, collection, WIDTH, hnsw=True)
    with engine._transaction() as connection:
        connection.execute("SET LOCAL enable_seqscan = off")  # the choice where few are searched
        hits = [engine._search(connection, query, 10, "image", []) for query in vectors[:50]]
        assert uses_of_index(connection) == 50
        connection.execute("SET LOCAL hnsw.max_scan_tuples = 1")
        rare = [parse_condition("n>3990")]
        few = [engine._search(connection, query, 5, "image", rare) for query in vectors[:9]]
        assert [len(some) for some in few] == [5] * 9
    engine.close()
    engine = PostgresEngine(postgres_url, collection, WIDTH)
    with engine._transaction() as connection:
        exact = [engine._search(connection, query, 10, "image", []) for query in vectors[:50]]
        assert uses_of_index(connection) == 0
    engine.close()
    shared = [
        len({hit.item.key for hit in some} & {hit.item.key for hit in others})
        for some, others in zip(hits, exact, strict=True)
    ]
    assert np.mean(shared) > 9.5


def uses_of_index(connection: psycopg.Connection) -> int:
    counted = "SELECT idx_scan FROM pg_stat_xact_user_tables WHERE relname = 'gradspace_photos'"
    found = connection.execute(counted).fetchone()
    assert found is not None
    return int(found[0])


def test_bad_places_in_postgres_are_explained(postgres_url: str, collection: str) -> None:  # noqa: F811
    PostgresEngine(postgres_url, collection, WIDTH).close()
    for url, name, width, sentence in (
        (postgres_url, collection, 8, "has vectors of width 16, and this model's have 8: use"),
        (
            postgres_url,
            'a"; DROP TABLE b',
            8,
            "a collection's name must have up to 40 lower-case letters",
        ),
        (postgres_url, collection, 16_001, "width up to 16,000, .* 16,001: use another engine"),
        ("postgresql://me:a secret@host/db", collection, 8, "PGPASSWORD or the file ~/.pgpass"),
        ("postgresql://me:secret@host/db", collection, 8, "PGPASSWORD or the file ~/.pgpass"),
        ("postgresql://me@host/db?password=secret", collection, 8, "PGPASSWORD or the file ~/.pgp"),
        (
            "postgresql://me@127.0.0.1:1/db",
            collection,
            8,
            "no connection .* 127.0.0.1, database db",
        ),
        (f"{postgres_url}&colour=red", collection, 8, "with options of libpq after a .: .*colour"),
    ):
        with pytest.raises(ValueError, match=sentence) as caught:
            PostgresEngine(url, name, width)
        assert "secret" not in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(
        ValueError, match=r"up to 4,000 in HNSW, .* have 4,001: search without hnsw"
    ):
        PostgresEngine(postgres_url, collection, 4_001, hnsw=True)


def test_without_pgvector(postgres_url: str) -> None:  # noqa: F811
    """A user who may not add it to a database that lacks it; and one with an old version of it."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE bare")
        connection.execute("CREATE USER plain")
    bare = postgres_url.replace("/postgres?", "/bare?")
    with pytest.raises(ValueError, match=r"lacks pgvector, .* CREATE EXTENSION vector"):
        PostgresEngine(bare.replace("postgres:@", "plain@"), "photos", WIDTH)
    with psycopg.connect(bare, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION vector")
        connection.execute("UPDATE pg_extension SET extversion = '0.7.4' WHERE extname = 'vector'")
    with pytest.raises(ValueError, match=r"has pgvector 0.7.4, and 0.8 or newer is needed"):
        PostgresEngine(bare, "photos", WIDTH)


def test_a_reader_needs_no_right_to_write(postgres_url: str, collection: str) -> None:  # noqa: F811
    engine = PostgresEngine(postgres_url, collection, WIDTH)
    engine.put(items(3), unit_vectors(3))
    engine.close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE USER reader")
        connection.execute("GRANT SELECT ON gradspace_photos TO reader")
    reader = PostgresEngine(postgres_url.replace("postgres:@", "reader@"), collection, WIDTH)
    assert len(reader.search(unit_vectors(1), 5, "image")[0]) == 3
    with pytest.raises(ValueError, match="says: permission denied for table gradspace_photos"):
        reader.remove(["0.jpg"])
    reader.close()


def test_bad_places_in_milvus_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(milvus, "TIMEOUT", 1.0)
    file = str(tmp_path / "milvus.db")
    engine = MilvusEngine(file, "photos", WIDTH)
    for uri, name, sentence in (
        (file, "photos", "has vectors of width 16, and this model's have 8: use a separate"),
        (file, "Photos!", "a collection's name must have up to 40 lower-case letters"),
        ("http://me:secret@host:19530", "photos", "set the environment variable MILVUS_TOKEN"),
        ("ftp://host", "photos", "is at http://host:19530 or https://host, or in a file"),
        (
            "http://127.0.0.1:1",
            "photos",
            "Milvus at http://127.0.0.1:1 says: .*; check that it is running",
        ),
        (str(tmp_path / "nowhere" / "milvus.db"), "photos", "milvus.db says: .*not exists"),
    ):
        with pytest.raises(ValueError, match=sentence) as caught:
            MilvusEngine(uri, name, 8)
        assert "secret" not in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(
        ValueError, match="text of the item 'a' has 65,536 bytes, and Milvus allows"
    ):
        engine.put([Item("a", "image", "ü" * 32_768)], unit_vectors(1))
    with pytest.raises(ValueError, match="finds at most 16,384 items at a time; got k=20,000"):
        engine.search(unit_vectors(1), 20_000, "image")
    assert len(engine) == 0
    engine.close()


def test_many_requests_are_one_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milvus, "PUT_AT_ONCE", 4)
    monkeypatch.setattr(milvus, "ASKED_AT_ONCE", 3)
    engine = MilvusEngine(str(tmp_path / "milvus.db"), "photos", WIDTH)
    engine.put(items(10), unit_vectors(10))
    keys = [item.key for item in items(10)]
    assert set(engine.fingerprints()) == set(keys)
    assert [found and found[0] for found in engine.get(keys)] == items(10)
    engine.remove(keys[:7])
    assert set(engine.fingerprints()) == set(keys[7:])
    engine.close()


def test_a_lost_server_is_explained(tmp_path: Path) -> None:
    from milvus_lite.server_manager import server_manager_instance

    engine = MilvusEngine(str(tmp_path / "milvus.db"), "photos", WIDTH)
    server_manager_instance.release_server(str(tmp_path / "milvus.db"))
    for call in (
        lambda: len(engine),
        lambda: engine.search(unit_vectors(1), 1, "image"),
        lambda: engine.put(items(1), unit_vectors(1)),
        lambda: engine.remove(["0.jpg"]),
        lambda: engine.get(["0.jpg"]),
        engine.fingerprints,
    ):
        with pytest.raises(
            ValueError, match=r"milvus.db says: .*server unavailable; check that it is running"
        ):
            call()
    engine.close()


PROGRAM = """
import sys, numpy as np, psutil
from gradspace.indexes.contract import Item
from gradspace.indexes.engines import open_engine
engine = open_engine(f"milvus+{sys.argv[1]}/milvus.db", "photos", 4)
engine.put([Item("a", "image")], np.eye(4, dtype=np.float32)[:1])
assert engine.search(np.eye(4, dtype=np.float32)[:1], 1, "image")[0][0].score == 1
engine.close()
this = psutil.Process()
assert not this.children() and not this.net_connections(), this.net_connections()
"""


@pytest.mark.slow
def test_milvus_lite_says_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    pytest.importorskip("psutil")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


CRASH = """
import os, signal, sys, numpy as np
from gradspace.indexes.contract import Item
from gradspace.indexes.engines import open_engine
engine = open_engine(sys.argv[1], "photos", 16)
engine.put([Item(key, "image") for key in "abcdefgh"], np.eye(16, dtype=np.float32)[:8])
engine.remove(["c"])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("where", ["postgres", "milvus"])
@pytest.mark.slow
def test_what_was_put_survives_a_crash(
    where: str,
    postgres_url: str,  # noqa: F811
    collection: str,
    tmp_path: Path,
) -> None:
    url = postgres_url if where == "postgres" else f"milvus+{tmp_path}/milvus.db"
    done = subprocess.run([sys.executable, "-c", CRASH, url], timeout=120)
    assert done.returncode == -signal.SIGKILL
    engine = open_engine(url, collection, WIDTH)
    assert sorted(engine.fingerprints()) == list("abdefgh")
    hits = engine.search(np.eye(WIDTH, dtype=np.float32)[2:5], 1, "image")
    assert [some[0].item.key for some in hits[1:]] == ["d", "e"]
    engine.close()
