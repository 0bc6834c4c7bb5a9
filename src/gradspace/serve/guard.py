"""Guard before every route: admission of requests, headers of answers, and metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gradspace.serve.metrics import Metrics

OWN_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
FORM = "multipart/form-data"


@dataclass(frozen=True)
class Guard:
    """ASGI middleware around the whole application."""

    app: ASGIApp
    metrics: Metrics
    body_bytes: int
    hosts: Collection[str] | None = None
    """Host names that requests must carry; None for any.

    A web site could make its own name resolve to this machine, and read the answers in a visitor's
    browser (DNS rebinding); such requests carry that name.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def send_guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-cache" if "etag" in headers else "no-store")
            await send(message)

        refused = self._refusal(Headers(scope=scope))
        try:
            if refused is not None:
                await refused(scope, receive, send_guarded)
            else:
                await self.app(scope, _limited(receive, self.body_bytes), send_guarded)
        except asyncio.CancelledError:  # the server is stopping, and has waited long enough
            if not status:
                sentence = "the server is stopping: try again later"
                await _sentence(503, sentence)(scope, receive, send_guarded)
        except Exception:
            logging.getLogger("uvicorn.error").exception("internal error")
            if not status:
                sentence = "something went wrong in the server; see its log"
                await _sentence(500, sentence)(scope, receive, send_guarded)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else "other"
            self.metrics.request(method, route, status, time.perf_counter() - began)

    def _refusal(self, headers: Headers) -> JSONResponse | None:
        host = headers.get("host", "")
        if self.hosts is not None and _without_port(host) not in self.hosts:
            return _sentence(
                400, f"this server answers requests to localhost only, not to {host[:100]!r}"
            )
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 18 or int(length) > self.body_bytes:
            return _sentence(413, too_large(self.body_bytes))
        return None


class FormRoute(APIRoute):
    """A route for forms, which rejects other content types before reading the body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_form(request: Request) -> Response:
            kind = request.headers.get("content-type", "")
            if kind.partition(";")[0].strip().lower() != FORM:
                raise HTTPException(415, f"a picture must be sent as {FORM}, got {kind[:100]!r}")
            return await handle(request)

        return handle_form


def too_large(limit: int) -> str:
    return f"a request may have at most {limit / 2**20:.3g} MiB: send a smaller picture"


def _limited(receive: Receive, limit: int) -> Receive:
    """Limit the bytes that actually arrive, regardless of Content-Length."""
    arrived = 0

    async def receive_limited() -> Message:
        nonlocal arrived
        message = await receive()
        arrived += len(message.get("body", b""))
        if arrived > limit:
            raise HTTPException(413, too_large(limit))
        return message

    return receive_limited


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()


def _sentence(status: int, detail: str) -> JSONResponse:
    return JSONResponse({"detail": detail}, status)
