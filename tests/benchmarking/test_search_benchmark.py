"""The benchmark of search compares like with like. No test looks at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import search
from benchmarks.case import Measurement


@pytest.mark.slow
def test_faiss_finds_what_we_find() -> None:
    pytest.importorskip("faiss")
    measured = {
        case: Measurement(1.0, 1.0, 1.0, numbers=search.prepare(case).run())
        for case in search.cases(quick=True)
    }
    search.check(measured)
    searching, indexing = search.tables(measured)
    assert len(searching.rows) == 7
    assert [row[0] for row in indexing.rows] == list(search.INDEXED.values())
    indexed = [m.numbers["images"] for case, m in measured.items() if case.what == "indexing"]
    assert indexed == [8, 8]
    case = next(case for case in measured if case.who == "faiss")
    measured[case] = replace(measured[case], numbers={"scores": 0.0})
    with pytest.raises(ValueError, match=r"faiss finds scores of 0.0 in all, ours of"):
        search.check(measured)
    with pytest.raises(ValueError, match="nobody is called 'somebody'"):
        search.prepare(replace(case, who="somebody"))
