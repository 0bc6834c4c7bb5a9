"""Region features as a detector would give them: one noisy vector per box.

A region shows an object, a part of one, a piece of the backdrop, or the backdrop as a whole. What
it shows (shape, colour, size, pattern, backdrop, role in an action, box) is projected by a fixed
random matrix, the same for every split and seed, and made non-negative:

    region = relu(attributes @ projection + 2 * noise * gaussian)

`noise` is also the probability that the detector replaces an attribute by a random one or misses a
role, so that no model can retrieve perfectly.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gradspace.data.scenes.world import (
    ACTIONS,
    BACKDROPS,
    COLOURS,
    PATTERNS,
    SHAPES,
    SIZES,
    Scene,
)

PROJECTION_SEED = 20_240_229
LOOKS = (SHAPES, COLOURS, SIZES, PATTERNS)
# Start of each field of an attribute vector.
_STARTS = np.cumsum([0, *map(len, (*LOOKS, BACKDROPS, ACTIONS, ACTIONS))]).tolist()
BACKDROP, DOES, UNDERGOES, BOX = _STARTS[len(LOOKS) :]
WIDTH = BOX + 4
CONTEXT = 0.4
"""Weight of the backdrop in the region of an object."""

Floats = NDArray[np.float64]


def region_features(
    scene: Scene, num_regions: int, dimension: int, noise: float, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Compute non-negative features [num_regions, dimension], in random order.

    Regions go to the backdrop, then to objects while there is room, then to repeats and empty
    boxes.
    """
    objects = rng.permutation(_objects(scene, noise, rng))
    regions = np.concatenate([_backdrop(scene, 1, noise, rng), objects])[:num_regions]
    missing = num_regions - len(regions)
    if missing:
        regions = np.concatenate([regions, _filling(scene, objects, missing, noise, rng)])
    hidden = rng.permutation(regions) @ _projection(dimension)
    hidden += 2 * noise * rng.standard_normal(hidden.shape)
    return np.maximum(hidden, 0).astype(np.float32)


@lru_cache(maxsize=8)
def _projection(dimension: int) -> Floats:
    """Draw the projection, scaled so that a typical object has values around 1."""
    rng = np.random.default_rng([PROJECTION_SEED, dimension])
    projection: Floats = rng.standard_normal((WIDTH, dimension)) / np.sqrt(len(LOOKS))
    return projection


def _objects(scene: Scene, noise: float, rng: np.random.Generator) -> Floats:
    """Encode each object as the detector sees it: attributes [objects, WIDTH], some mistaken."""
    seen = [(number, at) for number, group in enumerate(scene.groups) for at in group.positions]
    vectors = np.zeros((len(seen), WIDTH))
    mistaken = rng.random((len(seen), len(LOOKS))) < noise
    for vector, (number, (x, y)), wrong in zip(vectors, seen, mistaken, strict=True):
        group = scene.groups[number]
        looks = (group.shape, group.colour, group.size, group.pattern)
        for start, values, value, mistake in zip(_STARTS, LOOKS, looks, wrong, strict=False):
            code = int(rng.integers(len(values))) if mistake else values.index(value)
            vector[start + code] = 1.0
        vector[BACKDROP + BACKDROPS.index(scene.backdrop)] = CONTEXT
        for action in scene.actions:
            role = {action.subject: DOES, action.target: UNDERGOES}.get(number)
            if role is not None and rng.random() >= noise:
                vector[role + ACTIONS.index(action.name)] = 1.0
        shaken = (2 * x - 1, 2 * y - 1, 4 * group.radius, 4 * group.radius)
        vector[BOX:] = shaken + 0.05 * rng.standard_normal(4)
    return vectors


def _backdrop(scene: Scene, number: int, noise: float, rng: np.random.Generator) -> Floats:
    """Make regions [number, WIDTH] without objects; the first box is the whole picture."""
    vectors = np.zeros((number, WIDTH))
    for row, vector in enumerate(vectors):
        mistake = rng.random() < noise
        code = rng.integers(len(BACKDROPS)) if mistake else BACKDROPS.index(scene.backdrop)
        vector[BACKDROP + int(code)] = 1.0
        vector[BOX:] = rng.uniform(-1, 1, 4) if row else (0, 0, 1, 1)
    return vectors


def _filling(
    scene: Scene, objects: Floats, number: int, noise: float, rng: np.random.Generator
) -> Floats:
    """Fill up with regions that are not objects: faint repeats of objects, and empty boxes."""
    num_empty = int(rng.binomial(number, 0.3))
    repeats = objects[rng.integers(len(objects), size=number - num_empty)]
    repeats *= rng.uniform(0.4, 1.0, (len(repeats), 1))
    repeats[:, BOX:] += 0.15 * rng.standard_normal((len(repeats), 4))
    empty = _backdrop(scene, num_empty + 1, noise, rng)[1:]
    return np.concatenate([repeats, empty])
