"""Connections to PostgreSQL with pgvector, and what goes wrong with them, in a sentence."""

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
"""Of pgvector: with types of 2 bytes, and searches of an index that go on until enough is found."""


def check_url(url: str) -> dict[str, Any]:
    """What a URL says, by the names of libpq."""
    secret = bool(urlsplit(url).password)  # before libpq might cite it
    try:
        parts = {} if secret else dict(conninfo_to_dict(url))
    except psycopg.ProgrammingError as error:
        raise ValueError(
            "the URL of an index in PostgreSQL is postgresql://user@host/database, with options of "
            f"libpq after a ?: {_first_line(error)}"
        ) from None
    if secret or parts.get("password") or parts.get("sslpassword"):
        raise ValueError(
            "the URL has a password, which would be written into index.json: leave it out and use "
            "the environment variable PGPASSWORD or the file ~/.pgpass"
        )
    return parts


def connect(parts: Mapping[str, Any]) -> Connection:
    """A connection where every transaction sees the database as it was when it began."""
    connection = psycopg.connect(**{"connect_timeout": 10, **parts})
    try:
        connection.autocommit = True  # all that is done is in a transaction of its own
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
    """What went wrong with the database, in a sentence."""
    place = f"{parts.get('host', 'this machine')}, database {parts.get('dbname', 'of the user')}"
    try:
        yield
    except psycopg.OperationalError as error:
        raise ValueError(
            f"no connection to PostgreSQL at {place}: {_first_line(error)}; is the server running, "
            "and are user and password right?"
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
            "the database lacks pgvector, and it cannot be added here: install it on the server "
            f"and let an administrator run CREATE EXTENSION vector ({_first_line(error)})"
        ) from None
    version = found[0] if found else "0.0"
    if tuple(map(int, version.split(".")[:2])) < OLDEST:
        raise ValueError(
            f"the database has pgvector {version}, and 0.8 or newer is needed: let an "
            "administrator install it and run ALTER EXTENSION vector UPDATE"
        )


def _loads(text: str | bytes) -> Any:
    """A whole number beyond the largest one that is put was a floating-point number."""

    def number(digits: str) -> int | float:
        return int(digits) if abs(int(digits)) <= LARGEST_WHOLE else float(digits)

    return json.loads(text, parse_int=number)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
