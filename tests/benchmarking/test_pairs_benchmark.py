"""The benchmark of pair scores compares like with like. No test looks at a time."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import pairs
from benchmarks.case import Measurement


def test_the_loop_computes_our_scores_and_gradients() -> None:
    threads = torch.get_num_threads()
    measured = {
        case: Measurement(1.0, 1.0, 1.0, numbers=pairs.prepare(case).run())
        for case in pairs.cases(quick=True)
    }
    torch.set_num_threads(threads)
    pairs.check(measured)
    (table,) = pairs.tables(measured)
    assert [row[0] for row in table.rows] == list(pairs.SETTINGS)
    case, found = next((c, m) for c, m in measured.items() if c.who == "loop")
    measured[case] = replace(found, numbers={**found.numbers, "score": 7.0})
    with pytest.raises(ValueError, match="the loop has score 7"):
        pairs.check(measured)
