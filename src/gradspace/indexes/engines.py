"""Engines by URL."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from gradspace.commands import pip_install
from gradspace.indexes.contract import Engine

OPTIONS = {"postgresql": ("hnsw",), "milvus": ("hnsw", "shards", "replicas")}
EXPECTED = (
    "an engine is postgresql://user@host/database, milvus+http://host:19530 or milvus+file.db"
)


def open_engine(url: str, collection: str, width: int) -> Engine:
    """Open a collection, or create it if missing; `width` is that of the model's vectors.

    Options follow a ?: `hnsw=1` for approximate search; `shards=2` and `replicas=2` for Milvus; all
    others are passed to the database's own client.
    """
    name = "milvus" if url.startswith("milvus+") else urlsplit(url).scheme
    if name not in OPTIONS:
        raise ValueError(f"{EXPECTED}; got one that starts with {name or 'no scheme'!r}")
    address, options = _split(url.removeprefix("milvus+"), OPTIONS[name])
    hnsw = options.pop("hnsw", 0) == 1
    try:
        if name == "milvus":
            from gradspace.indexes.milvus import MilvusEngine

            return MilvusEngine(address, collection, width, hnsw=hnsw, **options)
        from gradspace.indexes.postgres import PostgresEngine
    except ImportError as error:
        extra = f"gradspace[{name.replace('postgresql', 'postgres')}]"
        raise ValueError(
            f"this engine needs {error.name}, which is not installed: {pip_install(extra)}"
        ) from error
    return PostgresEngine(address, collection, width, hnsw=hnsw)


def absolute_address(url: str) -> str:
    """Make a file's address absolute, so that its meaning does not depend on the current folder."""
    if not url.startswith("milvus+") or "://" in url:
        return url
    return f"milvus+{Path(url.removeprefix('milvus+')).absolute()}"


def _split(url: str, ours: tuple[str, ...]) -> tuple[str, dict[str, int]]:
    """Split a URL into one without our options, and the options."""
    address, _, query = url.partition("?")
    options, others = dict[str, int](), list[str]()
    for option in filter(None, query.split("&")):
        name, _, value = option.partition("=")
        if name not in ours:
            others.append(option)
        elif value.isascii() and value.isdigit():
            options[name] = int(value)
        else:
            raise ValueError(
                f"the options {', '.join(ours)} must be whole numbers, such as hnsw=1; got {option}"
            )
    return f"{address}?{'&'.join(others)}" if others else address, options
