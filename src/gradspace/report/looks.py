"""Appearance of the report: colours on light and dark paper, and one look per objective.

Plots and text name colours by role; the page gives each role a value for light and one for dark. An
objective has the same colour, dashes and marker wherever it appears.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LIGHT = {
    "paper": "#faf9f6",
    "card": "#ffffff",
    "ink": "#1d2329",
    "muted": "#57606a",
    "line": "#e2dfd8",
    "soft": "#f1efe9",
    "accent": "#2a5c8c",
    "right": "#17713f",
    "positive": "#0a6fb5",
    "negative": "#c2500a",
    "shade": "#8d949c",
    "late": "#d9480f",
}
DARK = {
    "paper": "#14171b",
    "card": "#1b1f25",
    "ink": "#e8eaed",
    "muted": "#a6afba",
    "line": "#323941",
    "soft": "#242a31",
    "accent": "#8fbce8",
    "right": "#6bd198",
    "positive": "#5fb2ee",
    "negative": "#f2955a",
    "shade": "#7c8590",
    "late": "#ffa066",
}

OBJECTIVE_LIGHT = (
    "#155baa",
    "#c74d06",
    "#008360",
    "#be509c",
    "#ad8d43",
    "#3c9ad5",
    "#5f49c7",
    "#5c6670",
)
OBJECTIVE_DARK = (
    "#58aef2",
    "#f38953",
    "#50dba8",
    "#fc9bce",
    "#e3bb3f",
    "#ace0ff",
    "#8d8dfe",
    "#909da7",
)
"""Found by search: any two differ under every kind of colour blindness, and all are visible."""

MARKERS = {
    "o": "M13 6a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
    "s": "M13.5 2.5h7v7h-7z",
    "^": "M17 1.5l4.6 8h-9.2z",
    "D": "M17 1.2l4.8 4.8l-4.8 4.8l-4.8 -4.8z",
    "v": "M17 10.5l4.6 -8h-9.2z",
    "P": "M15.4 2h3.2v2.4h2.4v3.2h-2.4v2.4h-3.2v-2.4h-2.4v-3.2h2.4z",
    "X": "M14.2 1.8l2.8 2.5l2.8 -2.5l1.6 1.6l-2.6 2.6l2.6 2.6l-1.6 1.6l-2.8 -2.5l-2.8 2.5"
    "l-1.6 -1.6l2.6 -2.6l-2.6 -2.6z",
    "<": "M12.5 6l8 -4.6v9.2z",
}
"""Markers of matplotlib, each as an equal path around (17, 6) for the legend."""

DASHES = ("", "6 3", "2 2", "8 2 2 2")


@dataclass(frozen=True)
class Look:
    """Colour, marker and dashes of one objective."""

    number: int

    @property
    def role(self) -> str:
        return f"objective-{self.number % len(OBJECTIVE_LIGHT)}"

    @property
    def marker(self) -> str:
        return list(MARKERS)[self.number % len(MARKERS)]

    @property
    def marker_path(self) -> str:
        return MARKERS[self.marker]

    @property
    def dashes(self) -> str:
        """Dash pattern, empty for a solid line; it changes when the colours repeat."""
        return DASHES[self.number // len(OBJECTIVE_LIGHT) % len(DASHES)]


def looks_of(objectives: Iterable[str]) -> dict[str, Look]:
    """Assign a look to each objective, in the order of first appearance."""
    return {name: Look(number) for number, name in enumerate(dict.fromkeys(objectives))}


def themes() -> dict[str, dict[str, str]]:
    """Colours by theme (light, dark) and role."""
    return {
        "light": LIGHT | {f"objective-{i}": c for i, c in enumerate(OBJECTIVE_LIGHT)},
        "dark": DARK | {f"objective-{i}": c for i, c in enumerate(OBJECTIVE_DARK)},
    }


ROLES = tuple(themes()["light"])


def ink(role: str) -> str:
    """Placeholder colour that matplotlib draws a role with, and that `svg` replaces."""
    return f"#01f0{ROLES.index(role):02x}"
