"""Tables: means and deviations, marks, published numbers, and the four formats."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from comparison.made_up import entry
from rich.console import Console

from gradspace.comparison.compare import find_out
from gradspace.comparison.entries import Entry
from gradspace.comparison.published import Published
from gradspace.comparison.tables import (
    TableCell,
    View,
    as_csv,
    as_latex,
    as_markdown,
    as_rich,
)
from gradspace.report.tables import cocos_tables
from gradspace.runs.numbers import RECALLS

METRICS = ("i2t R@1", "t2i R@1", "rsum")


def entries_with(shares: dict[str, float], seeds: int = 3) -> list[Entry]:
    """Objectives that answer about a share of 400 queries, each run a little differently."""
    rng = np.random.default_rng(0)
    difficulty = {"i2t": rng.random(400), "t2i": rng.random(2000)}
    found = []
    for name, share in shares.items():
        for seed in range(seeds):
            ranks = {
                way: np.where(d + 0.05 * rng.standard_normal(len(d)) < share, 1.0, 50.0)
                for way, d in difficulty.items()
            }
            found.append(entry(name, seed, ranks))
    return found


def test_means_deviations_and_marks() -> None:
    entries = entries_with({"weak": 0.3, "good": 0.6, "equal": 0.6})
    [table] = find_out(View("t", METRICS), entries).tables
    assert [label for label, _ in table.rows] == ["weak", "good", "equal"]
    for label, cells in table.rows:
        for metric, cell in zip(METRICS, cells, strict=True):
            values = [e.value(metric) for e in entries if e.objective == label]
            assert cell is not None
            assert cell.mean == pytest.approx(sum(values) / 3)
            assert cell.std == pytest.approx(np.std(values, ddof=1))
            assert cell.num_seeds == 3
    marks = {label: [cell.mark for cell in cells if cell] for label, cells in table.rows}
    assert marks["weak"] == ["", "", ""]
    assert {marks["good"][2], marks["equal"][2]} == {"best", "tied"}


@pytest.mark.parametrize("seeds", [1, 3])
def test_cocos_deviates_over_batches_everywhere(seeds: int) -> None:
    """On the terminal and on the page, beside published numbers of the same meaning."""
    entries = [entry("triplet", seed) for seed in range(seeds)]
    known = Published("t", "r", "made-up", "VSE++", "triplet", "i2t C^q", 6.8, 0.8, "")
    findings = find_out(View("t", ("i2t C^q", "rsum"), published=(known,)), entries)
    assert findings.counts
    [(_, cells)] = findings.tables[0].rows
    count, rsum = cells
    assert count is not None
    assert rsum is not None
    assert (count.mean, count.std, count.published) == ((seeds + 1) / 2, 0.5, (6.8, 0.8))
    assert (rsum.std is None) == (seeds == 1)
    [page, _] = cocos_tables("t", {"triplet": entries})
    assert page.rows[0][1][0] == TableCell(count.mean, count.std, seeds)
    assert not find_out(View("t", ("rsum",)), entries).counts


def test_shares_are_in_percent() -> None:
    entries = [entry("triplet", seed) for seed in range(2)]
    known = Published("t", "r", "made-up", "VSE++", "triplet", "i2t mAP@5", 0.41, None, "")
    [table] = find_out(View("t", ("i2t mAP@5",), published=(known,)), entries).tables
    [(_, [cell])] = table.rows
    assert cell is not None
    measured = np.mean([100 * one.value("i2t mAP@5") for one in entries])
    assert cell.mean == pytest.approx(measured)
    assert cell.published == (41.0, None)
    assert f"{measured:.1f}" in as_markdown(table)


def test_the_verdict_names_winner_and_equals() -> None:
    entries = entries_with({"weak": 0.3, "good": 0.6, "equal": 0.6})
    [sentence] = find_out(View("t", METRICS), entries).verdicts
    assert sentence.startswith(("VSE++, made-up: good beats weak", "VSE++, made-up: equal beats"))
    assert "cannot be told apart from it" in sentence
    assert "rsum" in sentence
    [sentence] = find_out(View("t", METRICS[:2]), entries).verdicts
    assert "R@1 image → text" in sentence, "where the table has no rsum, its first metric"


def test_published_numbers_are_shown_beside_ours() -> None:
    number = Published("T", "1", "made-up", "VSE++", "good", "i2t R@1", 61.5, 0.4)
    other = Published("T", "1", "elsewhere", "VSE++", "good", "i2t R@1", 99.9, None)
    view = View("t", METRICS, published=(number, other))
    [table] = find_out(view, entries_with({"good": 0.6, "weak": 0.3})).tables
    text = as_markdown(table)
    assert "[61.5 ± 0.4]" in text
    assert "99.9" not in text


def test_gradient_objectives_are_a_grid() -> None:
    names = {"constant/linear": 0.3, "nca/linear": 0.4, "constant/sigmoid": 0.5}
    [table] = find_out(View("t", METRICS[:2], "grid"), entries_with(names)).tables
    assert [(c.group, c.name) for c in table.columns] == [
        (f"{way} R@1", t) for way in ("image → text", "text → image") for t in ("constant", "nca")
    ]
    assert [label for label, _ in table.rows] == ["linear", "sigmoid"]
    assert table.rows[1][1][1] is None, "a cell that was not run stays empty"


def test_the_four_formats_say_the_same() -> None:
    entries = entries_with({"a_b": 0.3, "c&d": 0.6})
    [table] = find_out(View("t", METRICS), entries).tables
    cell = table.rows[1][1][0]
    assert cell is not None
    shown = f"{cell.mean:.1f} ± {cell.std:.1f}"
    console = Console(file=io.StringIO(), width=200, record=True)
    [wide] = as_rich(table, width=200)
    console.print(wide, *as_rich(table, width=40))
    short = shown.replace(" ± ", "±")
    assert console.export_text().count(short) == 2, "narrow terminals have a table per direction"
    assert len(as_rich(table, width=40)) == 2
    markdown = as_markdown(table)
    assert f"**{shown}**" in markdown
    widths = {line.count("|") for line in markdown.splitlines() if line.startswith("|")}
    assert widths == {len(METRICS) + 2}
    latex = as_latex(table)
    assert "textbf{" + shown.replace("±", r"$\pm$") + "}" in latex
    assert r"c\&d &" in latex
    assert r"a\_b &" in latex
    assert latex.count(r"\toprule") == latex.count(r"\bottomrule") == 1
    body = [line for line in latex.splitlines() if line.startswith((r"a\_b", r"c\&d"))]
    assert all(line.count(" & ") == len(METRICS) for line in body)
    rows = list(csv.DictReader(io.StringIO(as_csv(table))))
    assert float(rows[3]["mean"]) == cell.mean
    assert len(rows) == 2 * len(METRICS)


def test_rsum_is_never_cut_off() -> None:
    """On a phone it has a table of its own, where it does not fit beside the last direction."""
    entries = entries_with({"circle/sigmoid-ms": 0.3, "triplet": 0.6})
    [table] = find_out(View("t", (*RECALLS, "rsum")), entries).tables
    for width in (200, 62, 50):
        console = Console(file=io.StringIO(), width=width, record=True)
        console.print(*as_rich(table, width), sep="\n")
        text = console.export_text()
        assert "…" not in text
        assert text.count("rsum") == 1
    assert [len(as_rich(table, width)) for width in (200, 62, 50)] == [1, 2, 3]


def test_one_run_alone_is_a_table_without_marks() -> None:
    findings = find_out(View("t", METRICS), entries_with({"only": 0.5}, seeds=1))
    [(_, cells)] = findings.tables[0].rows
    assert [(cell.mark, cell.std) for cell in cells if cell] == [("", None)] * 3
    assert findings.verdicts == []
