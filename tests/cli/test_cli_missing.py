"""A path that leads nowhere is one sentence that says so, whatever the command."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import here
from small_runs import train_small

from gradspace.runs.folder import Run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_small(tmp_path_factory.mktemp("runs") / "a", training={"epochs": 1})


@pytest.mark.parametrize(
    "typed",
    [
        "evaluate NO",
        "evaluate RUN --data NO",
        "evaluate RUN --features NO",
        "evaluate RUN --propose NO",
        "embed NO --out OUT",
        "embed NO --text a --out OUT",
        "export NO --out OUT",
        "mine NO",
        "mine RUN --propose NO",
        "index NO photos --out OUT",
        "index RUN NO --out OUT",
        "index RUN RUN --metadata NO --out OUT",
        "search NO a",
        "serve NO --port 0",
        "report NO",
        "analyse run NO",
        "analyse flips RUN NO",
        "analyse cocos NO",
        "analyse diagram circle --scores NO",
        "train NO",
        "train --resume NO",
        "train --init NO",
        "train --data NO",
        "train --set data.features=NO",
        "train --offline-negatives NO",
        "compare RECIPE --data NO",
        "data check NO",
        "data features NO --backbone x --out OUT",
        "data features scenes --backbone NO --out OUT",
    ],
)
def test_a_path_that_leads_nowhere(
    typed: str, trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"NO": "no/where/at/all", "RUN": trained.folder, "OUT": "out", "RECIPE": "icr-table1"}
    for name, place in places.items():
        typed = typed.replace(name, str(place))
    done = here(*typed.split())
    [line] = done.stderr.splitlines()
    assert done.returncode == 1
    assert "no/where/at/all does not exist" in line
