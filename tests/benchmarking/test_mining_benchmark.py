"""The benchmark of mining compares like with like. No test looks at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import mining


def test_faiss_finds_our_lists() -> None:
    pytest.importorskip("faiss")
    measured = mining.in_turns(quick=True, rounds=1)
    mining.check(measured)
    (table,) = mining.tables(measured)
    assert [row[0] for row in table.rows] == list(mining.TITLES.values())
    case, found = next((c, m) for c, m in measured.items() if c.who == "faiss")
    measured[case] = replace(found, numbers={**found.numbers, "texts": 0.5})
    with pytest.raises(ValueError, match=r"faiss finds texts of mean score 0\.5, ours of"):
        mining.check(measured)


def test_nobody_else_is_measured() -> None:
    case = replace(mining.cases(quick=True)[0], who="somebody")
    with pytest.raises(ValueError, match="nobody is called 'somebody'"):
        mining.prepare(case)
