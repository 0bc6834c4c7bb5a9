"""matplotlib figures as SVG inside a page, coloured by roles and with unique ids."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from gradspace.report.looks import ROLES, ink

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text, in the font of the page
    "path.simplify": False,  # simplifying would drop the dots that `dots` draws
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.labelsize": 9.5,
    "axes.labelcolor": ink("muted"),
    "axes.edgecolor": ink("shade"),
    "axes.linewidth": 0.8,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "grid.color": ink("line"),
    "grid.linewidth": 0.8,
    "text.color": ink("ink"),
    "text.parse_math": False,
    "xtick.color": ink("shade"),
    "ytick.color": ink("shade"),
    "xtick.labelcolor": ink("muted"),
    "ytick.labelcolor": ink("muted"),
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "figure.facecolor": "none",
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
}

SHORT = {
    'style="fill:none;stroke:var(--line);stroke-width:0.8;stroke-linecap:round"': 'class="rule"',
    'style="fill:var(--shade);stroke:var(--shade);stroke-width:0.8"': 'class="tick"',
    'style="font-size:9px;text-anchor:end;fill:var(--muted)"': 'class="end"',
    'style="font-size:9px;text-anchor:middle;fill:var(--muted)"': 'class="middle"',
}
"""Frequent attributes that would take most of a figure's bytes, and their classes in report.css."""

WIDTH, HEIGHT = 3.5, 2.4
"""Size of a plot in inches; the page shows it 260 to 400 pixels wide."""


@dataclass(frozen=True)
class Plot:
    """A plot on the page."""

    heading: str
    svg: Markup
    objective: str | None = None
    """Objective whose colour precedes the heading."""
    note: str = ""
    """Note below the picture."""


@dataclass(frozen=True)
class PlotRow:
    """Plots that are read together; a row that is not `opened` is folded behind its heading."""

    heading: str
    plots: list[Plot]
    opened: bool = True
    objectives: tuple[str, ...] = ()
    """Objectives in the legend, if they share the plots."""
    wide: bool = False


class Drawer:
    """Turns figures into SVG, numbering the ids of each, as a page has many."""

    def __init__(self) -> None:
        self._number = 0

    @contextmanager
    def axes(self, width: float = WIDTH, height: float = HEIGHT) -> Iterator[Axes]:
        """Open an empty plot, with the same margins for all."""
        import matplotlib
        from matplotlib.figure import Figure

        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=(width, height))
            room = {"left": 0.5 / width, "right": 1 - 0.1 / width}
            room |= {"bottom": 0.47 / height, "top": 1 - 0.1 / height}
            yield figure.subplots(gridspec_kw=room)

    def svg(self, axes: Axes, description: str) -> Markup:
        """Render the figure of some axes, with a description in words."""
        import matplotlib

        self._number += 1
        figure: Figure = axes.get_figure(root=True)  # type: ignore[assignment]
        file = io.StringIO()
        with matplotlib.rc_context({**STYLE, "svg.hashsalt": str(self._number)}):
            figure.savefig(file, format="svg", metadata={"Date": None}, transparent=True, dpi=144)
        return Markup(_inline(file.getvalue(), f"f{self._number}-", description))


def _inline(text: str, prefix: str, description: str) -> str:
    """Adapt matplotlib's output to be inlined in a page."""
    opening = re.search(r'<svg[^>]*viewBox="([^"]+)"[^>]*>', text)
    assert opening is not None
    body = text[opening.end() :]
    for role in ROLES:
        body = body.replace(ink(role), f"var(--{role})")
    body = _with_own_ids(body.replace("xlink:href", "href"), prefix)
    label = escape(description)
    head = f'<svg class="plot" role="img" viewBox="{opening[1]}" aria-label="{label}">'
    return head + _smaller(body)


def _with_own_ids(text: str, prefix: str) -> str:
    """Drop ids that nothing refers to, and prefix the others."""
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    text = re.sub(r' id="([^"]+)"', lambda m: f' id="{prefix}{m[1]}"' if m[1] in used else "", text)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}", text)


def _smaller(text: str) -> str:
    """Shrink the SVG to a third: the same picture, in the font of the page."""
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r'<path d="[^"]*" style="fill: none"/>', "", text)  # empty backgrounds
    text = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size:\1", text)
    text = re.sub(r"font-family: [^;\"]*; |image-rendering:[^;\"]*;?", "", text)
    text = re.sub(r' transform="rotate\(-0 [^"]*"', "", text)
    text = re.sub(r' (?:d|x|y|width|height|transform)="[^"]*"', _rounded, text)
    text = re.sub(r' style="[^"]*"', lambda m: m[0].replace(": ", ":").replace("; ", ";"), text)
    for long, short in SHORT.items():
        text = text.replace(long, short)
    return _without_bare_groups(re.sub(r">\s+<", "><", text)).strip()


def _without_bare_groups(text: str) -> str:
    """Remove groups without attributes."""
    kept: list[str] = []
    says: list[bool] = []
    for piece in re.split(r"(<g[^>]*>|</g>)", text):
        if piece.startswith("<g"):
            says.append(piece != "<g>")
        if not piece.startswith(("<g", "</g")) or says[-1]:
            kept.append(piece)
        if piece == "</g>":
            says.pop()
    return "".join(kept)


def _rounded(attribute: re.Match[str]) -> str:
    """Round to a tenth of a point, and write lines of zero length as dots."""
    text = re.sub(r"-?\d+\.\d+", lambda m: f"{float(m[0]):.1f}".removesuffix(".0"), attribute[0])
    if text.startswith(" d="):
        text = re.sub(r"\s*\n\s*", "", text)
        text = re.sub(r"([MLCQ]) ", r"\1", text)
        text = re.sub(r"M([-\d.]+ [-\d.]+) ?L\1(?![\d.])", r"M\1h0", text)
    return text


def dots(axes: Axes, x: Any, y: Any, **style: Any) -> None:
    """Draw many small round dots as one path, in a tenth of a scatter plot's bytes."""
    _strokes(axes, [(a, b, a, b) for a, b in zip(x, y, strict=True)], style)


def crosses(axes: Axes, x: Any, y: Any, arm: float, **style: Any) -> None:
    """Draw many small crosses as one path, with arms in units of the data."""
    ends = []
    for a, b in zip(x, y, strict=True):
        ends.append((a - arm, b - arm, a + arm, b + arm))
        ends.append((a - arm, b + arm, a + arm, b - arm))
    _strokes(axes, ends, style)


def _strokes(axes: Axes, ends: list[tuple[float, float, float, float]], style: Any) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    if not ends:
        return
    points = [point for a, b, c, d in ends for point in ((a, b), (c, d))]
    codes = [Path.MOVETO, Path.LINETO] * len(ends)
    axes.add_patch(PathPatch(Path(points, codes), fill=False, capstyle="round", **style))
