"""The command behind the unit costs of docs/explanation/planning.md."""

from __future__ import annotations

import pytest

from benchmarks import unit_costs


@pytest.mark.slow
def test_every_step_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    unit_costs.main(count=500, width=8, pictures=4)
    _, _, *rows = capsys.readouterr().out.splitlines()
    found = {row.split(" | ")[0]: float(row.split(" | ")[1].replace(",", "")) for row in rows}
    assert len(found) == 6
    assert min(found.values()) >= 0
