"""Requests to an application without a port."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import httpx
from fastapi import FastAPI

PNG = "image/png"


def ask(app: FastAPI, *requests: tuple[str, str, dict[str, Any]]) -> list[httpx.Response]:
    """The answers to (method, path, options), all asked at the same time."""

    async def all_of_them() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            asked = (client.request(method, path, **options) for method, path, options in requests)
            return list(await asyncio.gather(*asked))

    return asyncio.run(all_of_them())


def get(app: FastAPI, path: str, **params: Any) -> httpx.Response:
    (answer,) = ask(app, ("GET", path, {"params": params} if params else {}))
    return answer


def post(app: FastAPI, picture: bytes, kind: str = PNG, **data: Any) -> httpx.Response:
    files = {"picture": ("picture", picture, kind)}
    (answer,) = ask(app, ("POST", "/api/search", {"files": files, "data": data}))
    return answer


def keys(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [hit["key"] for hit in answer.json()["hits"]]


def file_path(route: str, index: str, key: str) -> str:
    return f"{route}/{index}/{quote(key)}"


def sentence(answer: httpx.Response, status: int) -> str:
    """The sentence of an error, which is all there is."""
    assert answer.status_code == status, answer.text
    said = answer.json()
    assert list(said) == ["detail"]
    assert isinstance(said["detail"], str)
    assert "\n" not in said["detail"]
    assert "Traceback" not in said["detail"]
    return said["detail"]


def answered(answers: Sequence[httpx.Response]) -> list[int]:
    return [answer.status_code for answer in answers]
