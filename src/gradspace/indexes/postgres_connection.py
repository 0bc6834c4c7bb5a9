"""Connections to PostgreSQL with pgvector, whose errors become sentences."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import psycopg
from pgvector.psycopg import register_vector
from psycopg import Connection, errors
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.json import set_json_loads

from gradspace.indexes.stored import LARGEST_WHOLE

OLDEST = (0, 8)
"""Oldest version of pgvector with types of 2 bytes and iterative index scans."""


def check_url(url: str) -> dict[str, Any]:
    """Parse a URL into parameters of libpq."""
    secret = bool(urlsplit(url).password)  # checked before libpq can quote it
    try:
        parts = {} if secret else dict(conninfo_to_dict(url))
    except psycopg.ProgrammingError as error:
        raise ValueError(
            "the URL of an index in PostgreSQL must be postgresql://user@host/database, with "
            f"options of libpq after a ?: {_first_line(error)}"
        ) from None
    if secret or parts.get("password") or parts.get("sslpassword"):
        raise ValueError(
            "the URL has a password, which would be written into index.json: leave it out and use "
            "the environment variable PGPASSWORD or the file ~/.pgpass"
        )
    return parts


def connect(parts: Mapping[str, Any]) -> Connection:
    """Connect with transactions that see the database as it was at their start."""
    connection = psycopg.connect(**{"connect_timeout": 10, **parts})
    try:
        connection.autocommit = True  # each operation has its own transaction
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        _check_extension(connection)
        register_vector(connection)
        set_json_loads(_loads, connection)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def explained(parts: Mapping[str, Any]) -> Iterator[None]:
    """Turn errors of the database into a sentence."""
    place = f"{parts.get('host', 'this machine')}, database {parts.get('dbname', 'of the user')}"
    try:
        yield
    except psycopg.OperationalError as error:
        raise ValueError(
            f"no connection to PostgreSQL at {place}: {_first_line(error)}; check that the server "
            "is running, and that user and password are right"
        ) from error
    except psycopg.Error as error:
        raise ValueError(f"PostgreSQL at {place} says: {_first_line(error)}") from error


def _check_extension(connection: Connection) -> None:
    asked = "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
    try:
        found = connection.execute(asked).fetchone()
        if not found:
            connection.execute("CREATE EXTENSION vector")
            found = connection.execute(asked).fetchone()
    except (
        errors.FeatureNotSupported,
        errors.UndefinedFile,
        errors.InsufficientPrivilege,
    ) as error:
        raise ValueError(
            "the database lacks pgvector, which cannot be added here: install it on the server "
            f"and let an administrator run CREATE EXTENSION vector ({_first_line(error)})"
        ) from None
    version = found[0] if found else "0.0"
    if tuple(map(int, version.split(".")[:2])) < OLDEST:
        raise ValueError(
            f"the database has pgvector {version}, and 0.8 or newer is needed: let an "
            "administrator install it and run ALTER EXTENSION vector UPDATE"
        )


def _loads(text: str | bytes) -> Any:
    """Parse JSON; whole numbers larger than any that is stored were floating-point numbers."""

    def number(digits: str) -> int | float:
        return int(digits) if abs(int(digits)) <= LARGEST_WHOLE else float(digits)

    return json.loads(text, parse_int=number)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
