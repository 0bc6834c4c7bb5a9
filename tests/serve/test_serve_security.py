"""What a server must not do: read other files, fill its memory, or answer for other names."""

from __future__ import annotations

import socket
import struct
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from fastapi import FastAPI
from PIL import Image
from serve.asking import ask, file_path, get, keys, post, sentence
from serve.fakes import as_bytes, make_searcher
from serve.running import running

from gradspace.serve.app import make_app
from gradspace.serve.limits import Limits

ROUTES = ("/pictures/shapes", "/thumbnails/shapes", "/api/items/shapes", "/static")
OUTSIDE = (
    "../app.py",
    "..%2fapp.py",
    "%2e%2e/app.py",
    "%2e%2e%2fapp.py",
    "..%5capp.py",
    "....//app.py",
    "%252e%252e%252fapp.py",
    "..%c0%afapp.py",
    "%00app.py",
    "flat/../../app.py",
    "/etc/passwd",
    "%2fetc%2fpasswd",
    "file:///etc/passwd",
    "C:%5cWindows%5cwin.ini",
)
FORM = "multipart/form-data; boundary=line"


class Reading(dict[str, Image.Image]):
    """An index that would open any file it is asked for."""

    def __contains__(self, key: object) -> bool:
        return Path("/", str(key)).name in ("app.py", "passwd", "win.ini")

    def __missing__(self, key: str) -> Image.Image:
        return Image.new("RGB", (8, 8))


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("outside", OUTSIDE)
def test_no_key_leads_out(app: FastAPI, route: str, outside: str) -> None:
    answer = get(app, f"{route}/{outside}")
    assert answer.status_code in (404, 405)
    assert b"import" not in answer.content
    assert b"root:" not in answer.content


@pytest.mark.parametrize("outside", ["..%2fapp.py", "%2fetc%2fpasswd", "C:%5cwin.ini", "%00app.py"])
def test_the_server_does_not_count_on_the_index_for_it(outside: str) -> None:
    searcher = make_searcher()
    object.__setattr__(searcher.index, "pictures", Reading())
    careless = make_app([searcher])
    assert get(careless, "/pictures/shapes/app.py").status_code == 200
    for route in ROUTES[:2]:
        assert get(careless, f"{route}/{outside}").status_code == 404


def test_nor_one_that_no_client_has_tidied_up(app: FastAPI) -> None:
    with running(app) as address:
        place = urlsplit(address)
        for route in ROUTES:
            with socket.create_connection((place.hostname, place.port), timeout=5) as client:
                request = f"GET {route}/../../../app.py HTTP/1.1\r\nHost: localhost\r\n"
                client.sendall(f"{request}Connection: close\r\n\r\n".encode())
                answer = b"".join(iter(lambda: client.recv(4096), b""))
            assert answer.startswith(b"HTTP/1.1 404"), route
            assert b"import" not in answer


def test_every_answer_has_the_headers(app: FastAPI) -> None:
    for path in (
        "/",
        "/api/indexes",
        "/nowhere",
        "/api/search?q=fail",
        "/static/app.js",
        "/metrics",
    ):
        headers = get(app, path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'self'; img-src 'self' blob: data:;")
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "cache-control" in headers
        assert not [name for name in headers if name.startswith("access-control")]
    assert get(app, "/static/app.js").headers["cache-control"] == "no-cache"
    assert get(app, "/api/indexes").headers["cache-control"] == "no-store"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST:1"])
def test_its_own_names(app: FastAPI, host: str) -> None:
    (answer,) = ask(app, ("GET", "/health", {"headers": {"Host": host}}))
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "", "[::1]x"]
)
def test_a_name_that_leads_here_is_not_enough(app: FastAPI, host: str) -> None:
    (answer,) = ask(app, ("GET", "/api/indexes", {"headers": {"Host": host}}))
    assert "localhost only" in sentence(answer, 400)
    open_to_all = make_app([make_searcher()])
    (answer,) = ask(open_to_all, ("GET", "/health", {"headers": {"Host": host}}))
    assert answer.status_code == 200


def test_other_pages_may_not_ask(app: FastAPI) -> None:
    headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    (answer,) = ask(app, ("OPTIONS", "/api/search", {"headers": headers}))
    assert answer.status_code == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]


# --- bodies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [str(2**40), "9" * 5000, "-1", "many"])
def test_a_body_that_says_it_is_too_large(app: FastAPI, length: str) -> None:
    headers = {"Content-Length": length, "Content-Type": FORM}
    (answer,) = ask(app, ("POST", "/api/search", {"content": b"x", "headers": headers}))
    assert "at most 20 MiB" in sentence(answer, 413)


@pytest.mark.parametrize("headers", [{}, {"Content-Length": "100"}])
def test_a_body_that_is_larger_than_it_says(headers: dict[str, str]) -> None:
    app = make_app([make_searcher()], Limits(body_bytes=2**20))
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        yield b'--line\r\nContent-Disposition: form-data; name="picture"; filename="p"\r\n\r\n'
        while sent < 2**28:
            sent += 2**16
            yield b"x" * 2**16

    options = {"content": endless(), "headers": {"Content-Type": FORM, **headers}}
    (answer,) = ask(app, ("POST", "/api/search", options))
    assert "at most 1 MiB" in sentence(answer, 413)
    assert sent <= 2**21, "no more is read"


@pytest.mark.parametrize(
    "kind", ["", "application/json", "text/plain", "application/x-www-form-urlencoded"]
)
def test_bodies_of_other_types(app: FastAPI, kind: str) -> None:
    options = {"content": b'{"q": "a"', "headers": {"Content-Type": kind}}
    (answer,) = ask(app, ("POST", "/api/search", options))
    assert "multipart/form-data" in sentence(answer, 415)


@pytest.mark.parametrize("kind", ["text/plain", "image/svg+xml", "application/pdf"])
def test_files_of_other_types(app: FastAPI, kind: str) -> None:
    answer = post(app, as_bytes(Image.new("RGB", (8, 8))), kind)
    assert "a picture must be one of image/avif, " in sentence(answer, 415)


def part(header: bytes, content: bytes = b"x") -> bytes:
    return b"--line\r\n" + header + b"\r\n\r\n" + content + b"\r\n--line--\r\n"


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"", FORM, 422),
        (b"no form at all", FORM, 400),
        (b"--line\r\n", FORM, 422),
        (b"--line--\r\n", "multipart/form-data", 400),
        (b"--other\r\n", FORM, 400),
        (part(b"no header"), FORM, 400),
        (part(b"Content-Disposition: nonsense"), FORM, 400),
        (part(b'Content-Disposition: form-data; name="picture"'), FORM, 422),
        (part(b'Content-Disposition: form-data; name="q"', b"\xff"), FORM, 422),
        (part(b'Content-Disposition: form-data; name="_charset_"', b"none"), FORM, 422),
        (part(b'Content-Disposition: form-data; name="q"', b"x" * 2**21), FORM, 400),
    ],
)
def test_malformed_forms(app: FastAPI, content: bytes, kind: str, status: int) -> None:
    options = {"content": content, "headers": {"Content-Type": kind}}
    (answer,) = ask(app, ("POST", "/api/search", options))
    sentence(answer, status)


# --- pictures ------------------------------------------------------------------------------------


def png_that_claims(width: int, height: int) -> bytes:
    """A few bytes that would be a picture of any size."""

    def chunk(name: bytes, content: bytes) -> bytes:
        summed = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + summed

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    rows = chunk(b"IDAT", zlib.compress(b"\0" * 2**20, 9))
    return b"\x89PNG\r\n\x1a\n" + head + rows + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [8_000, 12_000, 30_000, 2**31 - 1])
def test_bombs_are_not_decoded(app: FastAPI, side: int) -> None:
    bomb = png_that_claims(side, side)
    tracemalloc.start()
    answer = post(app, bomb)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "pixels" in sentence(answer, 413)
    assert most < 2**24


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GIF89a",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%PDF-1.4",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n",
        as_bytes(Image.new("RGB", (64, 64), "red"), "TIFF"),
    ],
    ids=["empty", "gif", "svg", "pdf", "postscript", "tiff"],
)
def test_what_is_no_picture(app: FastAPI, content: bytes) -> None:
    assert "not a picture in a known format" in sentence(post(app, content), 415)


@pytest.mark.parametrize(
    "content",
    [
        as_bytes(Image.new("RGB", (64, 64), "red"), "JPEG")[:-200],
        as_bytes(Image.effect_noise((64, 64), 50))[:-200],
    ],
    ids=["half-jpeg", "half-png"],
)
def test_broken_pictures(app: FastAPI, content: bytes) -> None:
    assert "the picture is broken" in sentence(post(app, content), 422)


def test_many_pictures_at_once_wait_for_each_other() -> None:
    app = make_app([make_searcher(slow=0.05)], Limits(pictures_at_once=2))
    files = {"picture": ("p", as_bytes(Image.new("RGB", (64, 64), (196, 67, 61))), "image/png")}
    answers = ask(app, *[("POST", "/api/search", {"files": files})] * 8)
    assert all("red" in keys(answer)[0] for answer in answers)
    assert max(app.state.desk.searchers["shapes"].batches) <= 2


def test_html_is_never_sent_as_html(app: FastAPI) -> None:
    key = "flat/red circle #0.jpg"
    answer = get(app, file_path("/api/items", "shapes", key))
    assert "<img" in answer.text
    assert answer.headers["content-type"] == "application/json"
    wrong = get(app, "/api/items/shapes/<script>alert(1)</script>")
    assert wrong.headers["content-type"] == "application/json"
