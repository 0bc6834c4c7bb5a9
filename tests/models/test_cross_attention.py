"""SCAN and BFAN against plain loops over their equations: scores, gradients, blocks, pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from models import attention_loops as loops
from torch import Tensor

from gradspace.models import ImageInput, PairScorer, TextInput, build_model, cross_attention
from gradspace.models.bfan import BFAN
from gradspace.models.contract import unit

Score = Callable[[Tensor, Tensor], Tensor]

SCAN = [
    {"direction": direction, "pooling": pooling}
    for direction in ("text-to-image", "image-to-text")
    for pooling in ("lse", "avg")
]
PUBLISHED = {"text-to-image": (9.0, 6.0), "image-to-text": (4.0, 5.0)}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *(("scan", settings) for settings in SCAN),
    ("scan", {"leak": 0.0, "pooling": "avg"}),
    ("scan", {"attention_scale": 2.5, "pooling_scale": 3.0}),
    ("bfan", {"confidence": "equal"}),
    ("bfan", {"confidence": "prob"}),
    ("bfan", {"attention_scale": 5.0, "leak": 0.0}),
]
each_variant = pytest.mark.parametrize(
    ("name", "settings"), VARIANTS, ids=lambda value: str(value) if value else "published"
)


def make(name: str, settings: dict[str, Any], regions: int = 5) -> PairScorer:
    torch.manual_seed(0)
    built = build_model(
        name,
        image_input=ImageInput(shape=(regions, 12)),
        text_input=TextInput(vocabulary_size=11),
        width=7,
        **settings,
    )
    assert isinstance(built, PairScorer)
    return built.double().eval()


def oracle(name: str, settings: dict[str, Any]) -> Score:
    if name == "bfan":
        chosen = {"confidence": "equal", "attention_scale": 20.0, "leak": 0.1, **settings}
        scale = chosen.pop("attention_scale")
        return lambda regions, words: loops.bfan(regions, words, scale=scale, **chosen)
    direction = settings.get("direction", "text-to-image")
    attention, pooling = PUBLISHED[direction]
    chosen = {
        "direction": direction,
        "pooling": "lse",
        "attention_scale": attention,
        "pooling_scale": pooling,
        "leak": 0.1,
        **settings,
    }
    return lambda regions, words: loops.scan(regions, words, **chosen)


def parts(num_images: int, regions: int, lengths: list[int], seed: int = 0) -> list[Tensor]:
    """Unit vectors in a few dimensions, so that many similarities are large; zeros as padding."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(num_images, regions, 7, generator=generator, dtype=torch.float64)
    texts = torch.randn(len(lengths), max(lengths), 7, generator=generator, dtype=torch.float64)
    counts = torch.tensor(lengths)
    present = torch.arange(max(lengths)) < counts[:, None]
    return [unit(images), unit(texts) * present[..., None], counts]


def by_loops(score: Score, images: Tensor, texts: Tensor, lengths: Tensor) -> Tensor:
    rows = [
        torch.stack([score(image, text[:n]) for text, n in zip(texts, lengths, strict=True)])
        for image in images
    ]
    return torch.stack(rows)


@each_variant
@pytest.mark.parametrize(
    ("num_images", "regions", "lengths"),
    [(3, 5, [4, 1, 7, 2]), (2, 1, [3, 1, 5]), (1, 4, [1]), (4, 3, [6, 6])],
    ids=["odd lengths", "one region", "one pair", "no padding"],
)
def test_scores_are_those_of_the_equations(
    name: str, settings: dict[str, Any], num_images: int, regions: int, lengths: list[int]
) -> None:
    model, given = make(name, settings, regions), parts(num_images, regions, lengths)
    found = model.score(*given)
    torch.testing.assert_close(found, by_loops(oracle(name, settings), *given))


@each_variant
def test_gradients_are_those_of_the_equations(name: str, settings: dict[str, Any]) -> None:
    model = make(name, settings)
    images, texts, lengths = parts(3, 5, [4, 1, 7, 2])
    weights = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gradients = []
    for score in (model.score, lambda *given: by_loops(oracle(name, settings), *given)):
        leaves = [side.clone().requires_grad_() for side in (images, texts)]
        # The loops divide by lengths, so that the tiles must be handed vectors of length 1.
        given = (torch.nn.functional.normalize(leaf, dim=-1) for leaf in leaves)
        scores = score(next(given), next(given), lengths)
        gradients.append(torch.autograd.grad((scores * weights).sum(), leaves))
    torch.testing.assert_close(gradients[0], gradients[1])


@each_variant
def test_pairs_have_the_scores_of_blocks(name: str, settings: dict[str, Any]) -> None:
    model = make(name, settings)
    images, texts, lengths = parts(3, 5, [4, 1, 7, 2])
    row, column = torch.cartesian_prod(torch.arange(3), torch.arange(4)).unbind(1)
    pairs = model.score_pairs(images[row], texts[column], lengths[column])
    torch.testing.assert_close(pairs.view(3, 4), model.score(images, texts, lengths))
    slow = PairScorer.score(model, images, texts, lengths)  # what a model has that says no more
    torch.testing.assert_close(slow, model.score(images, texts, lengths))


@each_variant
@pytest.mark.parametrize("again", [False, True], ids=["kept", "computed again"])
def test_tiles_do_not_change_scores_and_gradients(
    name: str, settings: dict[str, Any], again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, found = make(name, settings), []
    images, texts, lengths = parts(9, 5, [4, 1, 7, 2, 7, 3])
    for size in (None, 1, 700):
        if size is not None:
            monkeypatch.setattr(cross_attention, "TILE_BYTES", {"cpu": size})
            monkeypatch.setattr(cross_attention, "IMAGES_AT_ONCE", 4)
            monkeypatch.setattr(cross_attention, "KEPT_BYTES", 0 if again else 1 << 40)
        leaves = [side.clone().requires_grad_() for side in (images, texts)]
        scores = model.score(leaves[0], leaves[1], lengths)
        found.append((scores, *torch.autograd.grad(scores.square().sum(), leaves)))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


@each_variant
def test_padding_and_the_rest_of_the_batch_do_not_matter(
    name: str, settings: dict[str, Any]
) -> None:
    model = make(name, settings)
    images, texts, lengths = parts(3, 5, [4, 1, 7, 2])
    together = model.score(images, torch.nn.functional.pad(texts, (0, 0, 0, 3)), lengths)
    for i in range(3):
        for t, length in enumerate(lengths):
            alone = model.score(images[i : i + 1], texts[t : t + 1, :length], lengths[t : t + 1])
            torch.testing.assert_close(alone[0, 0], together[i, t])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["scan", "bfan"])
def test_under_autocast_scores_are_float32_and_gradients_finite(
    name: str, dtype: torch.dtype
) -> None:
    model = make(name, {}).float()
    images = torch.randn(4, 5, 12)
    tokens, lengths = torch.randint(1, 11, (4, 6)), torch.tensor([6, 2, 3, 1])
    tokens = tokens.where(torch.arange(6) < lengths[:, None], 0)
    regions, words = model(images, tokens, lengths)
    full = model.score(regions, words, lengths)
    with torch.autocast("cpu", dtype):
        regions, words = model(images, tokens, lengths)
        scores = model.score(regions, words, lengths)
        pairs = model.score_pairs(regions, words, lengths)
    assert scores.dtype == pairs.dtype == torch.float32
    torch.testing.assert_close(scores, full, rtol=0.1, atol=0.1)
    torch.autograd.backward(scores.sum())
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_nothing_at_all_scores_zero_with_finite_gradients() -> None:
    """An image whose features are all zero, as some detectors leave them."""
    for name in ("scan", "bfan"):
        model = make(name, {"pooling": "avg"} if name == "scan" else {})
        images, texts, lengths = parts(2, 5, [3, 1])
        images[0] = 0
        images.requires_grad_()
        scores = model.score(images, texts, lengths)
        assert scores[0].eq(0).all()
        torch.autograd.backward(scores.sum())
        assert images.grad is not None
        assert images.grad.isfinite().all()


def test_scores_of_bfan_lie_between_minus_two_and_two() -> None:
    images, texts, lengths = parts(6, 5, [4, 1, 7, 2, 3])
    scores = make("bfan", {}).score(images, texts, lengths)
    assert scores.abs().max() <= 2
    same = make("bfan", {}).score(images[:1, :1], images[:1, :1], torch.tensor([1]))
    torch.testing.assert_close(same, torch.full((1, 1), 2.0, dtype=torch.float64))


def test_a_part_that_is_no_more_than_the_others_is_left_out() -> None:
    weights = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64).view(1, 1, 1, 4)
    equal, prob = (make("bfan", {"confidence": kind}) for kind in ("equal", "prob"))
    assert isinstance(equal, BFAN)
    assert isinstance(prob, BFAN)
    assert equal._focus(weights, None).flatten().tolist() == [True, True, False, False]
    assert prob._focus(weights, None).flatten().tolist() == [True, True, False, False]
    close = torch.tensor([0.4, 0.27, 0.23, 0.1], dtype=torch.float64).view(1, 1, 1, 4)
    assert equal._focus(close, None).flatten().tolist() == [True, True, False, False]
    assert prob._focus(close, None).flatten().tolist() == [True, False, False, False]


@pytest.mark.parametrize("name", ["scan", "bfan"])
def test_what_cannot_work_is_said_in_a_sentence(name: str) -> None:
    text_input = TextInput(vocabulary_size=11)
    with pytest.raises(ValueError, match=rf"{name} needs regions or a grid"):
        build_model(name, image_input=ImageInput(shape=(12,)), text_input=text_input)
    with pytest.raises(ValueError, match=rf"{name} scores pairs and has no embeddings"):
        make(name, {}).embed_images(torch.zeros(1, 5, 12))
    with pytest.raises(ValueError, match=rf"{name} scores pairs and has no embeddings"):
        make(name, {}).embed_texts(torch.ones(1, 2, dtype=torch.long), torch.tensor([2]))


def test_unknown_settings_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="direction of scan should be 'text-to-image'"):
        make("scan", {"direction": "both"})
    with pytest.raises(ValueError, match="confidence of bfan should be 'equal' or 'prob'"):
        make("bfan", {"confidence": "high"})
