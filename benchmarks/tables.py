"""Tables of numbers for people, on the terminal and in Markdown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.case import Measurement

if TYPE_CHECKING:
    import rich.table


@dataclass(frozen=True)
class Table:
    title: str
    columns: list[str]
    rows: list[list[str]]
    finding: str = ""
    """Sentence or two before the table on what the numbers say, and what the targets are."""

    def for_terminal(self) -> rich.table.Table:
        import rich.table  # not on every machine with a GPU

        table = rich.table.Table(title=self.title)
        for index, column in enumerate(self.columns):
            table.add_column(column, justify="right" if index else "left", no_wrap=not index)
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        alignment = ["---", *["---:"] * (len(self.columns) - 1)]
        lines = [self.columns, alignment, *self.rows]
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return f"{self.finding}\n\n{table}" if self.finding else table


def three_digits(number: float) -> str:
    """Format a number with three significant digits, without exponents."""
    decimals = 2 if abs(number) < 10 else 1 if abs(number) < 100 else 0
    return f"{number:.{decimals}f}"


def seconds(m: Measurement | None, scale: float = 1) -> str:
    """Format the time, marked by ~ if extrapolated, or the reason why there is none."""
    if m is None:
        return "-"
    if m.seconds is None:
        return str(m.failure)
    return ("~" if m.share < 1 else "") + three_digits(scale * m.seconds)


def milliseconds(m: Measurement | None) -> str:
    return seconds(m, scale=1000)


def megabytes(m: Measurement | None) -> str:
    return three_digits(m.megabytes) if m and m.megabytes is not None else "-"


def gibibytes(m: Measurement) -> str:
    return three_digits(m.megabytes * 1e6 / 2**30) if m.megabytes is not None else "-"


def time_ratio(a: Measurement | None, b: Measurement) -> str:
    return ratio(a.seconds if a else None, b.seconds)


def memory_ratio(a: Measurement | None, b: Measurement) -> str:
    return ratio(a.megabytes if a else None, b.megabytes)


def ratio(a: float | None, b: float | None) -> str:
    return three_digits(a / b) if a is not None and b else "-"
