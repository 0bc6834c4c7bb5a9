"""A run for others: what is copied, its model card, and a push to a stand-in of the hub."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import huggingface_hub
import pytest
import torch
from commands import here, refused
from huggingface_hub import ModelCard
from small_runs import open_data, train_small

import gradspace as gs
from gradspace.runs.export import NEEDED
from gradspace.runs.finish import evaluate_run
from gradspace.runs.folder import Run
from gradspace.runs.results import load_results


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    made = train_small(tmp_path_factory.mktemp("runs") / "small", training={"epochs": 1})
    assert "On dev, where the best epoch was chosen" in (made.folder / "README.md").read_text()
    evaluate_run(made, open_data(made.recipe()), torch.device("cpu"))
    return made


def test_an_export_is_all_that_a_run_is_used_with(run: Run, tmp_path: Path) -> None:
    done = here("export", run.folder, "--out", tmp_path / "out")
    assert "gs.load(" in done.stdout
    copied = {path.name for path in (tmp_path / "out").iterdir()}
    assert copied == {"README.md", *(name for name in NEEDED if (run.folder / name).exists())}
    texts = ["a red ball", "two blue cubes"]
    ours, theirs = (gs.load(folder).embed_texts(texts) for folder in (run.folder, tmp_path / "out"))
    assert torch.equal(ours, theirs)


def test_the_card_says_what_the_results_say(run: Run, tmp_path: Path) -> None:
    here("export", run.folder, "--out", tmp_path / "out", "--license", "apache-2.0")
    card = ModelCard.load(tmp_path / "out" / "README.md")
    found = load_results(run.results("test"))
    assert (card.data.license, card.data.library_name) == ("apache-2.0", "gradspace")
    assert card.data.eval_results is not None
    told = {one.metric_name: one.metric_value for one in card.data.eval_results}
    assert told == {name: round(found.metrics[name], 2) for name in told}
    [row] = re.findall(r"image → text \| ([\d.]+) \(([\d.]+) to ([\d.]+)\)", card.text)
    recall, low, high = map(float, row)
    assert low <= recall == round(found.metrics["i2t R@1"], 1) <= high
    hits = found.per_image("t2i R@10")
    error = float(hits.std(ddof=1)) / len(hits) ** 0.5
    [cells] = re.findall(r"text → image \|(.*)\|", card.text)
    [(low, high)] = [
        tuple(map(float, pair)) for pair in re.findall(r"([\d.]+) to ([\d.]+)", cells)[2:]
    ]
    assert (high - low) / 2 == pytest.approx(1.96 * error, rel=0.2)
    assert 'name = "vse++"' in card.text


# --- a stand-in of the hub ------------------------------------------------------------------------


class Hub(ThreadingHTTPServer):
    """Answers what an upload asks, and keeps what it is given."""

    def __init__(self, status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.status = status
        self.created: dict[str, Any] = {}
        self.files: dict[str, bytes] = {}


class Answers(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer({"type": "user", "name": "me", "sha": "0" * 40, "id": "me/small"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        place = f"http://127.0.0.1:{self.server.server_port}/me/small"
        if self.path.endswith("/repos/create"):
            self.server.created = json.loads(body)
            self._answer({"url": place})
        elif "/preupload/" in self.path:
            paths = [file["path"] for file in json.loads(body)["files"]]
            modes = {"uploadMode": "regular", "shouldIgnore": False}
            self._answer({"files": [{"path": path, **modes} for path in paths]})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.server.files[line["value"]["path"]] = content
            self._answer({"commitUrl": f"{place}/commit/0", "commitOid": "0" * 40})
        else:
            self._answer({})

    def _answer(self, told: dict[str, Any]) -> None:
        body = json.dumps(told).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
        monkeypatch.setenv("HF_TOKEN", "hf_made_up")
        yield server
        server.shutdown()


def test_a_push_uploads_what_was_exported(run: Run, hub: Hub, tmp_path: Path) -> None:
    done = here(
        *("export", run.folder, "--out", tmp_path / "out", "--push", "me/small", "--private")
    )
    assert done.returncode == 0, done.stderr
    assert "pushed to http://127.0.0.1" in done.stdout
    assert hub.created["visibility"] == "private"
    assert hub.files == {
        path.relative_to(tmp_path / "out").as_posix(): path.read_bytes()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }


def test_a_push_that_fails_keeps_the_export(run: Run, hub: Hub, tmp_path: Path) -> None:
    hub.status = 403
    told = here("export", run.folder, "--out", tmp_path / "out", "--push", "me/small")
    assert told.returncode == 1
    [line] = told.stderr.splitlines()
    assert re.search(r"was written but cannot be pushed to me/small \(.*403.*hf upload", line)
    assert (tmp_path / "out" / "best.safetensors").exists()


def test_private_goes_with_push(run: Run, tmp_path: Path) -> None:
    told = refused("export", run.folder, "--out", tmp_path / "out", "--private")
    assert told == "gradspace: --private goes with --push OWNER/NAME"
    assert not (tmp_path / "out").exists()
