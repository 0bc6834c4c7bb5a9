from __future__ import annotations

import math

import oracles
import pytest
import torch

import gradspace as gs
from gradspace.analysis.diagrams import draw_diagrams, pair_curves, real_triplets, triplet_surface
from gradspace.analysis.score_file import SavedScores
from gradspace.scores.positives import match_mask


@pytest.mark.parametrize("kind", ["constant", "nca", "circle"])
def test_surfaces_are_the_triplet_weights(kind: str) -> None:
    p, n = torch.tensor([0.1, 0.5, 0.9]).double(), torch.tensor([0.4, 0.2, 0.8]).double()
    found = triplet_surface(gs.objective(f"{kind}/constant"), p, n)
    expected = [
        oracles.TRIPLET_WEIGHTS[kind](a, b) for a, b in zip(p.tolist(), n.tolist(), strict=True)
    ]
    assert found.tolist() == pytest.approx(expected)


def test_equal_weight_lines_are_straight_or_circular() -> None:
    """GOAL section 3.2: nca is constant along p - n, circle along (p - 1)^2 + n^2."""
    angle = torch.linspace(0, 1.5, 20).double()
    on_circle = triplet_surface(
        gs.objective("circle/constant"), 1 - 0.9 * angle.cos(), 0.9 * angle.sin()
    )
    torch.testing.assert_close(on_circle, on_circle[:1].expand(20))
    on_line = triplet_surface(gs.objective("nca/constant"), angle + 0.1, angle)
    torch.testing.assert_close(on_line, on_line[:1].expand(20))


def test_curves_are_the_pair_weights_with_fixed_relative_terms() -> None:
    s = torch.tensor([0.0, 0.5, 1.0]).double()
    positive, negative = pair_curves(gs.objective("nca/sigmoid-ms"), s, relative=0.1)
    assert positive.tolist() == pytest.approx([1 / (0.1 + math.exp(2 * (x - 0.5))) for x in s])
    assert negative[2] == pytest.approx(1 / (0.1 + math.exp(-5)))
    positive, _ = pair_curves(gs.objective("triplet-hard"), s)
    assert positive.tolist() == [1, 1, 0]


def test_the_smooth_family_is_drawn_as_the_cell_that_it_is() -> None:
    s = torch.linspace(-0.5, 1, 7).double()
    p, n = torch.meshgrid(s, s, indexing="xy")
    cell, smooth = gs.objective("nca/sigmoid", alpha=3.0), gs.objective("smooth", slope_p=3.0)
    torch.testing.assert_close(triplet_surface(smooth, p, n), triplet_surface(cell, p, n))
    torch.testing.assert_close(pair_curves(smooth, s), pair_curves(cell, s))


def test_real_triplets_come_from_both_directions() -> None:
    scores = torch.tensor([[0.9, 0.3], [0.2, 0.6]])
    p, n = real_triplets(SavedScores(scores, match_mask(torch.eye(2).bool())))
    torch.testing.assert_close(p, torch.tensor([0.9, 0.6, 0.9, 0.6]))
    torch.testing.assert_close(n, torch.tensor([0.3, 0.2, 0.2, 0.3]))


@pytest.mark.slow
def test_every_objective_can_be_drawn() -> None:
    figure = draw_diagrams([gs.objective(info.name) for info in gs.list_objectives()])
    titles = [axes.get_title() for axes in figure.axes]
    for info in gs.list_objectives():
        assert any(title.startswith(f"{info.name}\n") for title in titles)
