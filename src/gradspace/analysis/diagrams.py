"""Triplet diagrams and pair-weight curves: an objective as a picture (GOAL Figures 2 and 3).

The upper row shows a triplet's weight over its positive and negative similarity, with lines of
equal weight; the lower row shows the weights of the positive and of the negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gradspace.analysis.score_file import SavedScores
from gradspace.analysis.weights import score_weights
from gradspace.files import write_atomically
from gradspace.objectives import Objective
from gradspace.objectives.goal import Goal
from gradspace.objectives.rows import positive_scores, reduce
from gradspace.objectives.smooth import Smooth
from gradspace.objectives.statistics import Hardest
from gradspace.scores.positives import Positives

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # fonts that journals accept
}


def triplet_surface(objective: Objective, p: Tensor, n: Tensor) -> Tensor:
    """Weight of triplets with positive scores p and negative scores n, of any common shape.

    For a GOAL objective it is the triplet weight T, for any other the weight of the only negative.
    """
    if goal := _as_goal(objective):
        return goal.triplet_weight(p, n)
    return _pair_weights(objective, p, n)[1]


def pair_curves(objective: Objective, s: Tensor, relative: float = 0.1) -> tuple[Tensor, Tensor]:
    """Weights of a positive and of a negative with score s, [len(s)].

    For a GOAL objective they are P+ and P-, with both relative terms at `relative` (0.1 in Figure
    3). For any other they are the weight of a positive against a negative at 0.5, and that of a
    negative against a positive at 0.5.
    """
    if goal := _as_goal(objective):
        m = (torch.tensor(relative), torch.tensor(relative)) if goal.relative else ()
        return goal.pair_weight(s, s, *m)
    middle = torch.full_like(s, 0.5)
    return _pair_weights(objective, s, middle)[0], _pair_weights(objective, middle, s)[1]


def real_triplets(saved: SavedScores) -> tuple[Tensor, Tensor]:
    """Positive and hardest negative scores of all triplets of a score matrix, both directions."""
    found: list[tuple[Tensor, Tensor]] = []
    for scores, positives in (
        (saved.scores.float(), saved.positives),
        (saved.scores.float().t(), saved.positives.transpose()),
    ):
        p = positive_scores(scores, positives).scores
        n = reduce(Hardest(), scores, positives).expand_as(p)
        real = positives.valid & n.isfinite()
        found.append((p[real], n[real]))
    return torch.cat([p for p, _ in found]), torch.cat([n for _, n in found])


def some_triplets(saved: SavedScores, number: int) -> list[tuple[float, float]]:
    """Sample up to `number` triplets evenly, as (positive, hardest negative), for a log."""
    p, n = real_triplets(saved)
    chosen = torch.linspace(0, len(p) - 1, min(number, len(p))).long()
    pairs = torch.stack([p[chosen], n[chosen]], 1).tolist()
    return [(round(positive, 3), round(negative, 3)) for positive, negative in pairs]


def draw_diagrams(
    objectives: Sequence[Objective], saved: SavedScores | None = None, relative: float = 0.1
) -> Figure:
    """Draw the diagrams, one column per objective."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(0.6 + 2.6 * len(objectives), 5.2), layout="constrained")
        axes = figure.subplots(
            2, len(objectives), squeeze=False, gridspec_kw={"height_ratios": (1.25, 1)}
        )
        triplets = real_triplets(saved) if saved else None
        for column, objective in enumerate(objectives):
            _draw_surface(axes[0, column], objective, triplets)
            _draw_curves(axes[1, column], objective, relative)
        axes[0, 0].set_ylabel("similarity of the negative")
        axes[1, 0].set_ylabel("pair weight")
    return figure


def save_diagrams(figure: Figure, out: str | Path) -> list[Path]:
    """Save the figure as PNG and as PDF, side by side."""
    base = Path(out).with_suffix("") if Path(out).suffix in (".png", ".pdf") else Path(out)
    paths = [base.with_name(f"{base.name}.{kind}") for kind in ("png", "pdf")]
    for path in paths:
        with write_atomically(path, "wb") as file:
            figure.savefig(file, format=path.suffix[1:], dpi=200)
    return paths


def _as_goal(objective: Objective) -> Goal | None:
    """The objective where it is a triplet weight times pair weights."""
    if isinstance(objective, Smooth):
        return objective.goal
    return objective if isinstance(objective, Goal) else None


def _pair_weights(objective: Objective, p: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """Absolute weights of the positive and of the negative, each triplet being a query."""
    scores = torch.stack([p.flatten(), n.flatten()], 1)
    index = torch.zeros(len(scores), 1, dtype=torch.long)
    only_first = Positives(index, torch.ones_like(index, dtype=torch.bool), 2)
    weights = score_weights(objective, scores, only_first).abs()
    return weights[:, 0].view(p.shape), weights[:, 1].view(n.shape)


def _draw_surface(axes: Axes, objective: Objective, triplets: tuple[Tensor, Tensor] | None) -> None:
    s = torch.linspace(-0.5, 1, 301, dtype=torch.float64)
    p, n = torch.meshgrid(s, s, indexing="xy")
    weight = triplet_surface(objective, p, n).numpy()
    extent = (float(s[0]), float(s[-1]), float(s[0]), float(s[-1]))
    image = axes.imshow(weight, origin="lower", extent=extent, cmap="viridis", aspect="equal")
    axes.figure.colorbar(image, ax=axes, shrink=0.75, pad=0.02)
    low, high = float(weight.min()), float(weight.max())
    if high > low:
        parts = (0.5,) if len(np.unique(weight)) == 2 else (0.1, 0.3, 0.5, 0.7, 0.9)
        levels = [low + (high - low) * part for part in parts]
        lines = axes.contour(s, s, weight, levels=levels, colors="white", linewidths=0.8)
        axes.clabel(lines, fmt="%.2g", fontsize=7)
    axes.plot(extent[:2], extent[2:], color="white", linestyle=":", linewidth=0.8)
    if triplets:
        axes.scatter(*triplets, s=2, color="#ff5a36", alpha=0.35, linewidths=0, rasterized=True)
    kind = "triplet weight $T$" if _as_goal(objective) else "weight of the negative"
    axes.set(title=f"{objective.name}\n{kind}", xlabel="similarity of the positive")
    axes.set(xlim=extent[:2], ylim=extent[2:])


def _draw_curves(axes: Axes, objective: Objective, relative: float) -> None:
    s = torch.linspace(-0.5, 1, 301, dtype=torch.float64)
    positive, negative = pair_curves(objective, s, relative)
    goal = _as_goal(objective)
    labels = ("$P_+$", "$P_-$") if goal else ("positive, $n$ = 0.5", "negative, $p$ = 0.5")
    axes.plot(s, positive, label=labels[0], color="#1f6feb")
    axes.plot(s, negative, label=labels[1], color="#d1442f", linestyle="--")
    with_relative = goal is not None and goal.relative is not None
    axes.set(xlabel="similarity", title=f"$m_+ = m_-$ = {relative:g}" if with_relative else "")
    highest = max(float(positive.max()), float(negative.max()))
    axes.set(xlim=(-0.5, 1), ylim=(-0.03 * highest, 1.35 * highest))
    axes.legend(loc="upper center", ncols=1 if goal else 2, fontsize=7)
