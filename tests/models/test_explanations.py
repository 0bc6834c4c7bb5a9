"""What words and regions add to a score, against plain loops over the equations."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from models import attention_loops, loops, tiny
from models.explained import REGIONS, explained, make, pairs
from torch import Tensor

from gradspace.models import ImageInput, TextInput
from gradspace.models.contract import unit
from gradspace.models.cross_attention import CrossAttention
from gradspace.models.pooling import GPO, length_mask
from gradspace.models.vse_infinity import VSEInfinity
from gradspace.models.vse_pp import VSEPlusPlus

SCAN = [
    {"direction": direction, "pooling": pooling, "leak": leak}
    for direction in ("text-to-image", "image-to-text")
    for pooling, leak in (("lse", 0.1), ("avg", 0.0))
]
ATTENDING: list[tuple[str, dict[str, Any]]] = [
    *(("scan", settings) for settings in SCAN),
    ("bfan", {"confidence": "equal", "attention_scale": 5.0}),
    ("bfan", {"confidence": "prob", "attention_scale": 5.0}),
]
EXPLAINED = [("vse++", {}), ("vse-infinity", {}), *ATTENDING]
each_explained = pytest.mark.parametrize(("name", "settings"), EXPLAINED, ids=str)
each_attending = pytest.mark.parametrize(("name", "settings"), ATTENDING, ids=str)


def column(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def added_by_gpo(pool: GPO, features: loops.Matrix, other: loops.Vector) -> list[float]:
    """sum over d of other_d * weight of the rank of x_d * x_d / |pooled|."""
    weights, pooled = loops.gpo_weights(pool, len(features)), loops.gpo(pool, features)
    found = []
    for row in features:
        total = 0.0
        for d, value in enumerate(row):
            rank = sum(others[d] > value for others in features)
            total += other[d] * weights[rank] * value
        found.append(total / math.sqrt(loops.dot(pooled, pooled)))
    return found


def test_generalized_pooling_is_shared_out_as_the_equation_says() -> None:
    model = make("vse-infinity")
    assert isinstance(model, VSEInfinity)
    assert model.refine is not None
    images, tokens, lengths = pairs()
    found = explained(model, images, tokens, lengths)
    regions = model.project(images) + model.refine(images.flatten(0, 1)).view(6, REGIONS, 8)
    states = model.texts(tokens, lengths)
    assert found.words is not None
    assert found.regions is not None
    for i, n in enumerate(lengths.tolist()):
        sides = loops.matrix(regions[i]), loops.matrix(states[i, :n])
        pools = model.pool_images, model.pool_texts
        image, text = (loops.unit(loops.gpo(p, s)) for p, s in zip(pools, sides, strict=True))
        torch.testing.assert_close(found.regions[i], column(added_by_gpo(pools[0], sides[0], text)))
        torch.testing.assert_close(
            found.words[i, :n], column(added_by_gpo(pools[1], sides[1], image))
        )


def test_what_a_feature_adds_moves_with_it_and_masked_ones_add_nothing() -> None:
    torch.manual_seed(0)
    pool = GPO(code_width=6, width=5).double()
    features, mask = torch.randn(3, 7, 4).double(), torch.rand(3, 7) < 0.6
    mask[:, 2] = True
    summands = pool.summands(features.masked_fill(~mask[..., None], math.nan), mask)
    torch.testing.assert_close(summands.sum(1), pool(features, mask))
    assert not summands[~mask].any()
    order = torch.randperm(7)
    torch.testing.assert_close(
        pool.summands(features[:, order], mask[:, order]), summands[:, order]
    )


def test_the_mean_of_regions_is_shared_out_with_the_bias() -> None:
    """u . unit(W m / |m| + b): a region adds u . (W x / |m| + b) / (n |W m / |m| + b|)."""
    model = make("vse++")
    assert isinstance(model, VSEPlusPlus)
    assert model.project.bias.any()
    images, tokens, lengths = pairs()
    found, texts = explained(model, images, tokens, lengths), model.embed_texts(tokens, lengths)
    assert found.words is None, "the last state of a GRU"
    assert found.regions is not None
    for image, text, added in zip(images, texts, found.regions, strict=True):
        rows = loops.matrix(image)
        mean = loops.mean(rows)
        length = math.sqrt(loops.dot(mean, mean))
        whole = loops.linear(model.project, loops.unit(mean))
        divisor = REGIONS * math.sqrt(loops.dot(whole, whole))
        parts = [loops.linear(model.project, [x / length for x in row]) for row in rows]
        expected = [loops.dot(part, loops.floats(text)) / divisor for part in parts]
        torch.testing.assert_close(added, column(expected))


def test_an_image_of_zeros_is_its_bias() -> None:
    _, tokens, lengths = pairs()
    images = torch.zeros(6, REGIONS, 12).double()
    found = explained(make("vse++"), images, tokens, lengths)
    assert found.regions is not None
    torch.testing.assert_close(found.regions, found.scores[:, None].expand(6, REGIONS) / REGIONS)


def test_the_mean_over_tokens_is_shared_out(tmp_path: Path) -> None:
    model = make("vse++", text_input=TextInput(encoder=tiny.bert(tmp_path)))
    assert isinstance(model, VSEPlusPlus)
    images, tokens, lengths = pairs()
    found, states = explained(model, images, tokens, lengths), model.texts(tokens, lengths)
    image = model.embed_images(images)
    assert found.words is not None
    for i, n in enumerate(lengths.tolist()):
        rows = loops.matrix(states[i, :n])
        mean = loops.mean(rows)
        divisor = n * math.sqrt(loops.dot(mean, mean))
        expected = [loops.dot(row, loops.floats(image[i])) / divisor for row in rows]
        torch.testing.assert_close(found.words[i, :n], column(expected))
        assert not found.words[i, n:].any()


def shared_out(model: Any, queries: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
    """Attention, and what every pair of parts adds, both [queries, context], of one direction."""
    settings = model.attention_scale, model.leak, getattr(model, "confidence", "")
    weights = attention_loops.attention(queries, context, *settings)
    relevance = attention_loops.relevances(queries, context, *settings)
    found = torch.zeros(len(queries), len(context), dtype=torch.float64)
    for i, q in enumerate(queries):
        attended = sum(w * c for w, c in zip(weights[i], context, strict=True))
        for k, c in enumerate(context):
            cosine = weights[i][k] * (q * c).sum() / (attended * attended).sum().sqrt()
            if getattr(model, "pooling", "avg") == "avg":
                found[i, k] = cosine / len(queries)
            else:
                scale = model.pooling_scale
                share = (scale * relevance[i]).exp() / sum((scale * r).exp() for r in relevance)
                score = attention_loops.log_sum_exp(relevance, scale)
                found[i, k] = share * (cosine + (score - relevance[i]) * weights[i][k])
    return torch.stack([torch.stack(row) for row in weights]), found


def expected_of(model: Any, regions: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
    """[words, regions]: the attention of the first direction, and what is added in all."""
    of_words, of_regions = shared_out(model, text, regions), shared_out(model, regions, text)
    by_direction = {
        "text-to-image": of_words,
        "image-to-text": (of_regions[0].t(), of_regions[1].t()),
    }
    found = [by_direction[direction] for direction in model.directions]
    return found[0][0], torch.stack([added for _, added in found]).sum(0)


def parts() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(4, REGIONS, 7, generator=generator, dtype=torch.float64)
    texts = torch.randn(4, 6, 7, generator=generator, dtype=torch.float64)
    lengths = torch.tensor([4, 1, 6, 2])
    return unit(images), unit(texts) * length_mask(lengths, 6)[..., None], lengths


@each_attending
def test_attention_and_its_parts_of_the_score_are_those_of_the_equations(
    name: str, settings: dict[str, Any]
) -> None:
    model = make(name, **settings)
    assert isinstance(model, CrossAttention)
    images, texts, lengths = parts()
    found = model.explain_parts(images, texts, lengths)
    assert found.words is not None
    assert found.regions is not None
    assert found.attention is not None
    torch.testing.assert_close(found.scores, model.score_pairs(images, texts, lengths))
    for i, n in enumerate(lengths.tolist()):
        attention, added = expected_of(model, images[i], texts[i, :n])
        torch.testing.assert_close(found.attention[i, :n], attention)
        torch.testing.assert_close(found.words[i, :n], added.sum(1))
        torch.testing.assert_close(found.regions[i], added.sum(0))
        assert not found.attention[i, n:].any()
        assert not found.words[i, n:].any()


@each_attending
def test_words_that_change_places_take_along_what_they_add(
    name: str, settings: dict[str, Any]
) -> None:
    """Permute the words of models that read each word independently."""
    model = make(name, **settings)
    assert isinstance(model, CrossAttention)
    images, texts, _ = parts()
    lengths, order = torch.tensor([6, 6, 6, 6]), torch.tensor([3, 0, 5, 1, 4, 2])
    before, after = (model.explain_parts(images, t, lengths) for t in (texts, texts[:, order]))
    assert before.words is not None
    assert before.attention is not None
    torch.testing.assert_close(after.words, before.words[:, order])
    torch.testing.assert_close(after.regions, before.regions)
    torch.testing.assert_close(after.attention, before.attention[:, order])


def test_of_a_log_sum_exp_a_part_adds_its_share_of_the_softmax() -> None:
    model = make("scan", pooling="lse")
    assert isinstance(model, CrossAttention)
    images, texts, lengths = parts()
    found = model.explain_parts(images, texts, lengths)
    assert found.words is not None
    for i, n in enumerate(lengths.tolist()):
        relevance = torch.stack(
            attention_loops.relevances(texts[i, :n], images[i], 9.0, 0.1, focus="")
        )
        expected = (6.0 * relevance).softmax(0) * found.scores[i]
        torch.testing.assert_close(found.words[i, :n], expected)


@each_explained
def test_regions_that_change_places_take_along_what_they_add(
    name: str, settings: dict[str, Any]
) -> None:
    model, order = make(name, **settings), torch.tensor([2, 0, 4, 1, 3])
    images, tokens, lengths = pairs()
    before = explained(model, images, tokens, lengths)
    after = explained(model, images[:, order], tokens, lengths)
    assert before.regions is not None
    torch.testing.assert_close(after.regions, before.regions[:, order])
    torch.testing.assert_close(after.words, before.words)
    if before.attention is not None:
        torch.testing.assert_close(after.attention, before.attention[..., order])


@each_explained
def test_a_pair_is_explained_as_if_it_were_alone(name: str, settings: dict[str, Any]) -> None:
    """Whatever its batch and padding; and everything adds up."""
    model = make(name, **settings)
    images, tokens, lengths = pairs()
    together = explained(model, images, tokens, lengths)
    for i, n in enumerate(lengths.tolist()):
        alone = explained(model, images[i : i + 1], tokens[i : i + 1, :n], lengths[i : i + 1])
        assert alone.regions is not None
        assert together.regions is not None
        torch.testing.assert_close(alone.regions[0], together.regions[i])
        torch.testing.assert_close(alone.regions.sum(1), alone.scores)
        if alone.words is not None:
            assert together.words is not None
            torch.testing.assert_close(alone.words[0], together.words[i, :n])
            torch.testing.assert_close(alone.words.sum(1), alone.scores)


def test_models_that_cannot_tell_say_so() -> None:
    images, tokens, lengths = pairs()
    for name in ("vsrn", "fusion"):
        assert make(name).explain(images, tokens, lengths) is None
    one_vector = make("vse++", ImageInput(shape=(12,)))
    assert one_vector.explain(images[:, 0], tokens, lengths) is None
    passages = make("text-dual", ImageInput(passages=True))
    assert passages.explain(torch.cat([lengths[:, None], tokens], 1), tokens, lengths) is None
