"""The command behind the figures of docs/reference/figures.md."""

from __future__ import annotations

import pytest
from indexes.servers import postgres_url  # noqa: F401

pytest.importorskip("faiss")
pytest.importorskip("milvus_lite")
pytest.importorskip("pgvector")
from benchmarks import engines


@pytest.mark.usefixtures("postgres_url")
@pytest.mark.slow
def test_every_engine_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    engines.main(count=600, width=8)
    _, _, *rows = capsys.readouterr().out.splitlines()
    recalls = {row.split(" | ")[0]: float(row.split()[-2]) for row in rows}
    assert set(recalls) == {
        "| PostgreSQL, exact",
        "| PostgreSQL, HNSW",
        "| Milvus Lite, exact, 10,000 of them",
        "| a file of faiss, hnsw",
        "| a file of faiss, ivf-pq",
    }
    assert min(recalls.values()) > 0.95
