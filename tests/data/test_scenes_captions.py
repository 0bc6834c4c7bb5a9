"""Captions: true, varied, and with a relevance that equals the plain-loop oracle."""

import math
from collections import Counter
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from gradspace.data.scenes import Caption, Meaning, Scene, Scenes, holds, relevance
from gradspace.data.scenes.captions import KINDS
from gradspace.data.scenes.lexicon import ADJECTIVES, NOUNS, VERBS, plural
from gradspace.data.scenes.truth import Mention, Relation
from gradspace.data.scenes.world import RELATIONS, Action, SceneGroup, related

NUM_SCENES = 1000


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    dataset = Scenes(num_images=NUM_SCENES)
    return [dataset.scene(i) for i in range(NUM_SCENES)]


@pytest.fixture(scope="module")
def captions() -> list[Caption]:
    dataset = Scenes(num_images=NUM_SCENES)
    return [caption for i in range(NUM_SCENES) for caption in dataset.captions(i)]


@pytest.fixture(scope="module")
def truth(captions: list[Caption], scenes: list[Scene]) -> NDArray[np.bool_]:
    return relevance(captions, scenes)


@pytest.mark.slow
def test_every_caption_is_true_of_its_own_scene(
    captions: list[Caption], scenes: list[Scene], truth: NDArray[np.bool_]
) -> None:
    assert truth.shape == (5 * NUM_SCENES, NUM_SCENES)
    assert truth.dtype == bool
    for number, caption in enumerate(captions):
        assert truth[number, number // 5], caption.text
        assert holds(caption.meaning, scenes[number // 5]), caption.text


def test_relevance_equals_the_oracle(
    captions: list[Caption], scenes: list[Scene], truth: NDArray[np.bool_]
) -> None:
    some = range(0, len(captions), 11)
    expected = [[holds(captions[c].meaning, scene) for scene in scenes[:150]] for c in some]
    np.testing.assert_array_equal(truth[list(some)][:, :150], expected)
    assert np.sum(expected) > 150  # more than the captions' own scenes


@pytest.mark.parametrize("name", RELATIONS)
def test_relevance_of_bare_relations_equals_the_oracle(name: str, scenes: list[Scene]) -> None:
    meaning = Meaning((Mention(), Mention()), (Relation(name, 1, 0),))
    expected = [holds(meaning, scene) for scene in scenes]
    np.testing.assert_array_equal(relevance([Caption("", meaning, ())], scenes)[0], expected)
    assert 0 < sum(expected) < len(scenes)


def test_relevance_of_nothing() -> None:
    assert relevance([], [Scenes().scene(0)]).shape == (0, 1)
    assert relevance(Scenes().captions(0), []).shape == (5, 0)


BALLS = SceneGroup("ball", "red", "small", "plain", ((0.2, 0.5), (0.3, 0.5)), 0.05)
CUBE = SceneGroup("cube", "blue", "large", "striped", ((0.5, 0.5),), 0.1)
STAR = SceneGroup("star", "red", "large", "shiny", ((0.5, 0.1),), 0.1)
SCENE = Scene("grass", (BALLS, CUBE, STAR), (Action("chasing", 0, 1), Action("stacked_on", 2, 1)))
ANY = Mention()


@pytest.mark.parametrize(
    ("meaning", "expected"),
    [
        (Meaning((Mention("ball", "red", counts=(2,)),)), True),
        (Meaning((Mention("ball", "red", counts=(1,)),)), False),
        (Meaning((Mention("ball", counts=(2, 3, 4)),)), True),
        (Meaning((Mention("ball", "blue"),)), False),
        (Meaning((Mention(colour="red"), Mention(colour="red"))), True),
        (Meaning((Mention(colour="blue"), Mention(colour="blue"))), False),
        (Meaning((ANY, ANY, ANY)), True),
        (Meaning((ANY, ANY, ANY, ANY)), False),
        (Meaning((Mention("ball"), Mention("cube")), (Relation("chasing", 0, 1),)), True),
        (Meaning((Mention("ball"), Mention("cube")), (Relation("chasing", 1, 0),)), False),
        (Meaning((Mention("star"), Mention("cube")), (Relation("on_top_of", 0, 1),)), True),
        (Meaning((Mention("cube"), Mention("star")), (Relation("on_top_of", 0, 1),)), False),
        (Meaning((Mention("cube"), Mention("star")), (Relation("touching", 0, 1),)), True),
        (Meaning((Mention("ball"), Mention("cube")), (Relation("touching", 0, 1),)), False),
        (Meaning((Mention("ball"), Mention("cube")), (Relation("left_of", 0, 1),)), True),
        (Meaning((Mention("cube"), Mention("star")), (Relation("left_of", 0, 1),)), False),
        (Meaning((Mention("star"), Mention("ball")), (Relation("above", 0, 1),)), True),
        (Meaning((Mention("cube"), Mention("ball")), (Relation("next_to", 0, 1),)), True),
        (Meaning((Mention("star"), Mention("cube")), (Relation("next_to", 0, 1),)), False),
        (Meaning(absent=(Mention("ring"),)), True),
        (Meaning(absent=(Mention("ball"),)), False),
        (Meaning(absent=(Mention("ball", "blue"),)), True),
        (Meaning(absent=(Mention(pattern="striped"),)), False),
        (Meaning(backdrops=("snow", "grass")), True),
        (Meaning(backdrops=("snow",)), False),
        (Meaning((Mention("ball"),), only=True), False),
        (Meaning((Mention("star"), Mention("ball"), Mention("cube")), only=True), True),
    ],
)
def test_semantics_by_hand(meaning: Meaning, expected: bool) -> None:
    assert holds(meaning, SCENE) is expected
    assert relevance([Caption("", meaning, ())], [SCENE]).tolist() == [[expected]]


def test_captions_are_varied(captions: list[Caption]) -> None:
    texts = [caption.text for caption in captions]
    lengths = [len(text.split()) for text in texts]
    assert min(lengths) >= 5
    assert max(lengths) <= 20
    assert len(set(lengths)) == 16
    assert all(text == text.lower() for text in texts)
    assert len(set(texts)) > 0.97 * len(texts)
    together = " ".join(texts).replace(".", "").replace(",", "")
    words = Counter(together.split())
    assert len(words) > 150
    for synonym in [s for synonyms in NOUNS.values() for s in synonyms]:
        assert synonym in together
        assert plural(synonym) in together
    for synonym in [s for synonyms in ADJECTIVES.values() for s in synonyms]:
        assert words[synonym] > 0, synonym
    for verb in [v for verbs in VERBS.values() for v in verbs]:
        assert verb.singular in together
        assert not verb.passive or verb.passive in together


def test_five_different_captions_per_scene(captions: list[Caption]) -> None:
    for start in range(0, len(captions), 5):
        assert len({caption.text.rstrip(".") for caption in captions[start : start + 5]}) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_occurs_and_tells_scenes_apart(
    kind: str, captions: list[Caption], truth: NDArray[np.bool_]
) -> None:
    found = [number for number, caption in enumerate(captions) if kind in caption.kinds]
    assert len(found) > 0.03 * len(captions)
    assert 1 < truth[found].sum(axis=1).mean() < 0.02 * NUM_SCENES


def test_captions_are_true_of_a_few_scenes(truth: NDArray[np.bool_]) -> None:
    true_scenes = truth.sum(axis=1)
    assert 1.5 < true_scenes.mean() < 0.02 * NUM_SCENES
    assert 0.1 < (true_scenes > 1).mean() < 0.8


def distance(one: SceneGroup, other: SceneGroup) -> float:
    """The space between the closest objects of two groups."""
    nearest = min(math.dist(a, b) for a, b in product(one.positions, other.positions))
    return nearest - one.radius - other.radius


def test_scenes_keep_their_promises(scenes: list[Scene]) -> None:
    for scene in scenes:
        shapes = [group.shape for group in scene.groups]
        assert 1 <= len(shapes) == len(set(shapes)) <= 4
        assert sum(group.count for group in scene.groups) <= 9
        pairs = list(product(range(len(shapes)), repeat=2))
        for name in ("left_of", "above"):
            assert not any(
                related(scene, name, i, j) and related(scene, name, j, i) for i, j in pairs
            )
        for action in scene.actions:
            assert action.subject != action.target
            pairs.remove((action.subject, action.target))
            if action.name in ("stacked_on", "balancing_on"):
                subject, target = scene.groups[action.subject], scene.groups[action.target]
                assert subject.centre[1] < target.centre[1]
        for i, j in pairs:
            if i < j:
                assert distance(scene.groups[i], scene.groups[j]) > 0.0
