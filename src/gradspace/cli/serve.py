"""`gradspace serve`: search in a browser, and over HTTP."""

from __future__ import annotations

import ipaddress
import signal
import socket
import threading
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from gradspace.cli.options import Device
from gradspace.cli.shared import console, errors
from gradspace.commands import pip_install
from gradspace.indexes.searcher import Searcher, open_searcher
from gradspace.processes import choose_device

SERVER = "gradspace[serve]"
STOPPING = 3
"""Seconds for requests in flight when the server is stopped."""


def add_to(app: typer.Typer) -> None:
    app.command("serve")(serve)


def serve(
    indexes: Annotated[
        list[Path],
        typer.Argument(metavar="INDEX", help="Folders of indexes; give several to compare them."),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 admits other machines.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free one.")
    ] = 8000,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    explain: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Another run on the same data, such as SCAN, that explains the results; by "
            "default the index's own model.",
        ),
    ] = None,
    device: Device = None,
) -> None:
    """Search in a browser: by sentence, by picture, with one model or two side by side."""
    listening = _listen(host, port)
    with listening:
        chosen = choose_device(device)
        searchers = [open_searcher(path, chosen, explain) for path in indexes]
        for searcher in searchers if explain else ():
            if not searcher.explains:
                why = f"{explain} cannot explain results of {searcher.index.name}"
                errors.print(why, style="yellow", markup=False, soft_wrap=True)
        run_server(searchers, listening, open_page)


def run_server(searchers: Sequence[Searcher], listening: socket.socket, open_page: bool) -> None:
    """Serve until SIGINT or SIGTERM, after which requests in flight are finished."""
    try:
        import uvicorn

        from gradspace.serve.app import make_app
        from gradspace.serve.guard import OWN_HOSTS
    except ImportError as error:
        raise ValueError(
            f"the server needs {error.name}, which is not installed: {pip_install(SERVER)}"
        ) from error

    class Server(uvicorn.Server):
        """Server that ends quietly where uvicorn would raise the signal again."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            before = {
                number: signal.signal(number, self.handle_exit)
                for number in (signal.SIGINT, signal.SIGTERM)
            }
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            told = f"serving on {address}, Ctrl-C stops"
            console.print(told, markup=False, highlight=False, soft_wrap=True)
            if open_page:
                threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    host, port = listening.getsockname()[:2]
    address = f"http://{_in_address(host)}:{port}"
    app = make_app(searchers, hosts=OWN_HOSTS if ipaddress.ip_address(host).is_loopback else None)
    Server(
        uvicorn.Config(
            app,
            access_log=False,  # searches are private
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=STOPPING,
        )
    ).run(sockets=[listening])


def has_server() -> bool:
    """Whether the packages of the server are installed."""
    return all(find_spec(name) for name in ("fastapi", "python_multipart", "uvicorn"))


def _listen(host: str, port: int) -> socket.socket:
    """Listen before the model is loaded, so that a port in use is reported at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ValueError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}; "
            "choose others with --host and --port"
        ) from error


def _in_address(host: str) -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{shown}]" if ":" in shown else shown
