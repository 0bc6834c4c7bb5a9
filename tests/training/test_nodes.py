"""Several machines, each a `torchrun` of its own on localhost, that work as one process does."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from several import together
from small_runs import small_recipe, train_small
from torch.multiprocessing.spawn import ProcessRaisedException
from training.test_distributed import STOCHASTIC, train_together
from training.test_resume import assert_same, wait_until_saved

import gradspace as gs
from gradspace import processes
from gradspace.runs.folder import Run
from gradspace.runs.mine import mine
from gradspace.runs.recipe import recipe_toml
from gradspace.tensor_files import load_tensors

WORK = Path(__file__).with_name("on_a_node.py")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


Node = subprocess.Popen[str]
StartNodes = Callable[..., list[Node]]


@pytest.fixture
def start_nodes() -> Iterator[StartNodes]:
    """Start two machines, of which the first has the address where they meet; none outlives a test.

    Call it with the number of processes of each, and the arguments of `on_a_node.py`.
    """
    started: list[Node] = []

    def start(per_node: int, *arguments: str | Path) -> list[Node]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        torchrun = [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--rdzv-backend=c10d"),
            *(f"--nproc-per-node={per_node}", f"--rdzv-endpoint=127.0.0.1:{port}"),
            *("--rdzv-id=test", "--local-addr=127.0.0.1"),
        ]
        nodes = [
            subprocess.Popen(
                [*torchrun, f"--rdzv-conf=is_host={host}", str(WORK), *map(str, arguments)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL"},
            )
            for host in (True, False)
        ]
        started.extend(nodes)
        return nodes

    yield start
    for node in started:
        if node.poll() is None:
            node.terminate()  # which torchrun hands on to its processes
            with suppress(subprocess.TimeoutExpired):
                node.communicate(timeout=20)
            node.kill()
            node.communicate()


def finish(node: Node) -> tuple[int, str, str]:
    output, errors = node.communicate(timeout=120)
    return node.returncode, output, errors


def said(errors: str) -> list[str]:
    """Select the lines of a machine's output that are not torchrun's."""
    return [line for line in errors.splitlines() if line.startswith("gradspace: ")]


# --- the numbers of one process -----------------------------------------------------------------

TABLES: dict[str, Any] = {
    "objective": {"name": "nt-xent", "memory": 40},
    "training": {"batch_size": 31, "chunk": 9, "track_every": 2},
}


def test_two_machines_are_as_one_process(start_nodes: StartNodes, tmp_path: Path) -> None:
    """Four processes, of which two are the first of their machine."""
    alone = train_small(tmp_path / "alone", **TABLES)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(recipe_toml(small_recipe(**TABLES)))
    for node in start_nodes(2, tmp_path, "train", recipe):
        code, _, errors = finish(node)
        assert code == 0, errors
    run = Run(tmp_path / "run")
    for line, other in zip(run.metrics(), alone.metrics(), strict=True):
        assert line["loss"] == pytest.approx(other["loss"], rel=1e-3)
        for way in {"image_to_text", "text_to_image"} & other.keys():
            assert line[way] == pytest.approx(other[way], rel=0.02), "COCOS"
    torch.testing.assert_close(
        load_tensors(run.best)[0], load_tensors(alone.best)[0], rtol=1e-3, atol=1e-4
    )
    told = [
        json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(4)
    ]
    assert [each["world_size"] for each in told] == [4, 4, 4, 4]
    assert sorted(each["local_rank"] for each in told) == [0, 0, 1, 1]
    assert [bool(each["written"]) for each in told] == [True, False, False, False]
    expected = gs.evaluate(run.folder, device="cpu").report.rsum
    lists = mine(run.folder, top_texts=5, top_images=5, out=tmp_path / "lists", device="cpu").lists
    for each in told:
        assert each["rsum"] == pytest.approx(expected)
        assert each["texts_of_image"] == lists.texts_of_image.tolist()


# --- a machine that is lost ---------------------------------------------------------------------


def test_a_lost_machine_ends_the_others_and_the_run_goes_on(
    start_nodes: StartNodes, tmp_path: Path
) -> None:
    """The machine where they meet; tests/training/test_distributed.py loses single processes."""
    tables = {**STOCHASTIC, "training": {"ema": 0.9, "batch_size": 30, "chunk": 8, "save_every": 0}}
    together(2, train_together, tmp_path / "whole", tables)
    recipe, run = tmp_path / "recipe.toml", Run(tmp_path / "run")
    recipe.write_text(recipe_toml(small_recipe(**tables)))
    command: tuple[str | Path, ...] = ("train", recipe, "--out", run.folder, "--device", "cpu")
    nodes = start_nodes(1, tmp_path, "run", *command)
    wait_until_saved(run, 7, nodes[0])
    pids = [int((tmp_path / f"{rank}.pid").read_text()) for rank in range(2)]
    nodes[0].kill()
    os.kill(_worker_of(nodes[0], pids), signal.SIGKILL)
    found = [finish(node) for node in nodes]
    assert all(code for code, _, _ in found)
    sentence = (
        "gradspace: another process of the run was lost or cannot be reached; look at its output"
    )
    assert [line for _, _, errors in found for line in said(errors)] == [sentence]
    again = ("train", "--resume", run.folder, "--device", "cpu")
    for node in start_nodes(1, tmp_path, "run", *again):
        code, _, errors = finish(node)
        assert code == 0, errors
    assert_same(run, Run(tmp_path / "whole"))


def _worker_of(node: Node, pids: list[int]) -> int:
    [found] = [pid for pid in pids if int(_status(pid)["PPid"]) == node.pid]
    return found


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def train_elsewhere(folder: Path) -> None:
    """In a working directory of the process's own, as on machines that share nothing."""
    place = folder / f"machine {processes.rank()}"
    place.mkdir()
    os.chdir(place)
    gs.train(small_recipe(), out="run", device="cpu")


def test_a_run_that_not_every_machine_sees(tmp_path: Path) -> None:
    failed = (AssertionError, ProcessRaisedException)  # whichever process ends first
    with pytest.raises(failed, match="run is not there on every machine: put the run on a"):
        together(2, train_elsewhere, tmp_path)
