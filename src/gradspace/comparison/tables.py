"""Tables of a comparison: mean ± standard deviation, the best marked, in four formats.

The deviation is over seeds; that of COCOS is over batches, as in its paper, averaged over seeds.
A cell is bold if its mean is the best of the table for its metric, and underlined (`~` in plain
text) if it cannot be told apart from the best (`gradspace.analysis.significance`). The
number of the paper, if there is one, follows in brackets.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from gradspace.analysis.significance import Difference, compare_all
from gradspace.analysis.verdicts import not_distinguishable
from gradspace.comparison.entries import Entry, Group, grouped, per_image
from gradspace.comparison.published import Published
from gradspace.runs.numbers import ARROWS, COCOS, RECALLS, decimals, is_share

Mark = Literal["", "best", "tied"]
TESTED = (*RECALLS, "rsum")
"""Metrics that are means over queries, so that differences can be tested."""


@dataclass(frozen=True)
class TableCell:
    mean: float
    std: float | None
    num_seeds: int
    mark: Mark = ""
    published: tuple[float, float | None] | None = None


@dataclass(frozen=True)
class Column:
    group: str
    """Heading that spans neighbouring columns: a direction."""
    name: str
    decimals: int


@dataclass(frozen=True)
class ResultTable:
    """Table of one model on one dataset."""

    title: str
    corner: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, tuple[TableCell | None, ...]], ...]


Tests = Mapping[tuple[str, str, str], tuple[Mapping[str, np.ndarray], list[Difference]]]
"""(dataset, model, metric) -> results per image, and all differences."""


def test_differences(entries: Sequence[Entry], metrics: Sequence[str]) -> Tests:
    """Test every pair of objectives of every model, by every metric that can be tested."""
    found = {}
    for (dataset, model), group in grouped(entries).items():
        for metric in metrics:
            if metric in TESTED and len(group) > 1:
                results = per_image(group, metric)
                found[dataset, model, metric] = (results, compare_all(results))
    return found


@dataclass(frozen=True)
class View:
    """Options for showing a comparison."""

    title: str
    metrics: tuple[str, ...]
    layout: Literal["rows", "grid"] = "rows"
    published: tuple[Published, ...] = ()


def make_tables(view: View, entries: Sequence[Entry], tests: Tests) -> list[ResultTable]:
    """Make one table per dataset and model, as in the paper."""
    known = {number.key: (number.mean, number.std) for number in view.published}
    found = []
    for (dataset, model), group in grouped(entries).items():
        values = {
            (objective, metric): _cell((dataset, model, objective, metric), group, tests, known)
            for objective in group
            for metric in view.metrics
        }
        layout = _as_grid if view.layout == "grid" else _as_rows
        found.append(layout(f"{model}, {dataset}", list(group), view.metrics, values))
    return found


TableCells = Mapping[tuple[str, str], TableCell]
"""(objective, metric) -> cell"""


def _as_rows(
    title: str, objectives: Sequence[str], metrics: Sequence[str], values: TableCells
) -> ResultTable:
    columns = tuple(_column(metric, metric) for metric in metrics)
    rows = tuple((o, tuple(values[o, metric] for metric in metrics)) for o in objectives)
    return ResultTable(title, "objective", columns, rows)


def _as_grid(
    title: str, objectives: Sequence[str], metrics: Sequence[str], values: TableCells
) -> ResultTable:
    """Make triplet weights columns, once per metric, and pair weights rows."""
    triplet = list(dict.fromkeys(objective.partition("/")[0] for objective in objectives))
    pair = list(dict.fromkeys(objective.partition("/")[2] for objective in objectives))
    columns = tuple(
        Column(_long_name(metric), t, decimals(metric)) for metric in metrics for t in triplet
    )
    rows = tuple(
        (p, tuple(values.get((f"{t}/{p}", metric)) for metric in metrics for t in triplet))
        for p in pair
    )
    return ResultTable(title, "pair \\ triplet weight", columns, rows)


def _cell(
    key: tuple[str, str, str, str],
    group: Group,
    tests: Tests,
    known: Mapping[tuple[str, str, str, str], tuple[float, float | None]],
) -> TableCell:
    dataset, model, objective, metric = key
    mark: Mark = ""
    if (dataset, model, metric) in tests:
        best, tied = not_distinguishable(*tests[dataset, model, metric])
        mark = "best" if objective == best else "tied" if objective in tied else ""
    mean, std = summarise(group[objective], metric)
    published = known.get(key)
    if published and is_share(metric):
        published = (100 * published[0], None if published[1] is None else 100 * published[1])
    return TableCell(mean, std, len(group[objective]), mark, published)


def summarise(seeds: Sequence[Entry], metric: str) -> tuple[float, float | None]:
    """Return mean and standard deviation of a metric as shown in tables; shares are in percent."""
    values = np.array([entry.value(metric) for entry in seeds]) * (100 if is_share(metric) else 1)
    if metric in COCOS:
        stds = [std for entry in seeds if (std := entry.std_over_batches(metric)) is not None]
        return float(values.mean()), float(np.mean(stds)) if stds else None
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else None


def _column(metric: str, name: str) -> Column:
    way, _, rest = metric.partition(" ")
    if way in ARROWS:
        return Column(ARROWS[way], rest, decimals(metric))
    return Column("", name, decimals(metric))


def _long_name(metric: str) -> str:
    way, _, rest = metric.partition(" ")
    return f"{ARROWS[way]} {rest}" if way in ARROWS else metric


# --- formats ------------------------------------------------------------------------------------


def as_rich(table: ResultTable, width: int) -> list[RichTable]:
    """Format for a terminal of this width: one table, or one for every direction.

    Metrics without a direction, such as rsum, go into the last table, or into a separate one.
    """
    numbers = range(len(table.columns))
    heads = ["\n".join(filter(None, (c.group, c.name))) for c in table.columns]
    whole = _rich(table, table.title, numbers, heads)
    if _fits(whole, width):
        return [whole]
    names = [column.name for column in table.columns]

    def part(group: str, start: int, size: int) -> RichTable:
        title = f"{table.title}: {group}" if group else table.title
        return _rich(table, title, numbers[start : start + size], names, padding=0)

    spans = _spans([column.group for column in table.columns])
    if len(spans) > 1 and not spans[-1][0]:
        (group, start, size), (_, _, more) = spans[-2:]
        if _fits(part(group, start, size + more), width):
            spans[-2:] = [(group, start, size + more)]
    return [part(*span) for span in spans]


def _fits(table: RichTable, width: int) -> bool:
    return Console(width=1000).measure(table).maximum <= width


def _rich(
    table: ResultTable, title: str, chosen: Sequence[int], heads: Sequence[str], padding: int = 1
) -> RichTable:
    shown = RichTable(
        title=escape(title),
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, padding),
    )
    shown.add_column(escape(table.corner), no_wrap=True)
    for number in chosen:
        shown.add_column(escape(heads[number]), justify="right", no_wrap=True)
    styles = {"best": "bold", "tied": "underline", "": ""}
    for label, cells in table.rows:
        texts = [
            Text(
                _text(cell, table.columns[number]).replace(" ± ", "±"),
                style=styles[cell.mark] if cell else "",
            )
            for number in chosen
            for cell in (cells[number],)
        ]
        shown.add_row(escape(label), *texts)
    return shown


def as_markdown(table: ResultTable) -> str:
    """Format a Markdown table under its title."""
    heads = [" ".join(filter(None, (c.group, c.name))) for c in table.columns]
    marks = {"best": "**{}**", "tied": "<u>{}</u>", "": "{}"}
    lines = [
        f"**{table.title}**",
        "",
        _pipes([table.corner, *heads]),
        _pipes(["---", *("---:" for _ in heads)]),
    ]
    for label, cells in table.rows:
        texts = [
            marks[cell.mark].format(_text(cell, column)) if cell else ""
            for cell, column in zip(cells, table.columns, strict=True)
        ]
        lines.append(_pipes([label, *texts]))
    return "\n".join(lines) + "\n"


def as_latex(table: ResultTable) -> str:
    """Format a booktabs table; the directions span their columns, as in the papers."""
    spans = _spans([column.group for column in table.columns])
    marks = {"best": r"\textbf{{{}}}", "tied": r"\underline{{{}}}", "": "{}"}
    top = " & ".join(rf"\multicolumn{{{n}}}{{c}}{{{_escaped(group)}}}" for group, _, n in spans)
    rules = "".join(
        rf"\cmidrule(lr){{{start + 2}-{start + n + 1}}}" for group, start, n in spans if group
    )
    lines = [
        r"% \usepackage{booktabs}",
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\toprule",
        rf"& {top} \\",
        rules,
        " & ".join([_escaped(table.corner), *(_escaped(c.name) for c in table.columns)]) + r" \\",
        r"\midrule",
    ]
    for label, cells in table.rows:
        texts = [
            marks[cell.mark].format(_text(cell, column).replace("±", r"$\pm$")) if cell else ""
            for cell, column in zip(cells, table.columns, strict=True)
        ]
        lines.append(" & ".join([_escaped(label), *texts]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def as_csv(table: ResultTable) -> str:
    """Format one line per cell, with all digits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ("table", "row", "group", "column", "mean", "std", "seeds", "mark", "published", "pub_std")
    )
    for label, cells in table.rows:
        for cell, column in zip(cells, table.columns, strict=True):
            if cell is not None:
                published = cell.published or (None, None)
                numbers = (cell.mean, cell.std, cell.num_seeds, cell.mark, *published)
                writer.writerow((table.title, label, column.group, column.name, *numbers))
    return out.getvalue()


FORMATS: Mapping[str, Callable[[ResultTable], str]] = {
    "md": as_markdown,
    "tex": as_latex,
    "csv": as_csv,
}


def _text(cell: TableCell | None, column: Column) -> str:
    if cell is None:
        return ""
    measured = _number(cell.mean, cell.std, column.decimals)
    if cell.published is None:
        return measured
    return f"{measured} [{_number(*cell.published, column.decimals)}]"


def _number(mean: float, std: float | None, decimals: int) -> str:
    return f"{mean:.{decimals}f}" + (f" ± {std:.{decimals}f}" if std is not None else "")


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _spans(groups: Sequence[str]) -> list[tuple[str, int, int]]:
    """List (group, first column, number of columns) of every run of equal groups."""
    found: list[tuple[str, int, int]] = []
    for number, group in enumerate(groups):
        if found and found[-1][0] == group:
            found[-1] = (group, found[-1][1], found[-1][2] + 1)
        else:
            found.append((group, number, 1))
    return found


def _escaped(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "→": r"$\rightarrow$", "^": r"\^{}", "_": r"\_"}
    special |= {character: f"\\{character}" for character in "&%$#{}"}
    return "".join(special.get(character, character) for character in text)
