"""Meanings of captions, and the scenes of which they are true.

A meaning is a conjunction. It is true of a scene if different groups of the scene can be found for
its mentions so that every mention fits its group, every relation holds between the groups found,
no group fits any of the `absent` mentions, the backdrop is one of `backdrops` (when given), and
the scene has no further groups (when `only`).

A mention describes one group: "two red balls" is true if there is a group of exactly two red balls,
"a red ball" of exactly one, "some red balls" of two or more, "several" and "a few" of three or
more, and "something red" of a red group of any count. All groups of a scene have different shapes,
so these are also the counts over the whole scene. "No star" and "nothing is striped" say that no
group, of any count, is a star or is striped. Words left out leave their attribute open. Relations
are those of `world.related`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from gradspace.data.scenes.world import (
    APART,
    COLOURS,
    COUNTS,
    MAX_GROUPS,
    ON_TOP_OF,
    PATTERNS,
    RELATIONS,
    SHAPES,
    SIZES,
    TOUCHING,
    Scene,
    SceneGroup,
    related,
)

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Mention:
    """Attributes of one mentioned group; None leaves an attribute open."""

    shape: str | None = None
    colour: str | None = None
    size: str | None = None
    pattern: str | None = None
    counts: tuple[int, ...] = COUNTS

    def fits(self, group: SceneGroup) -> bool:
        return (
            self.shape in (None, group.shape)
            and self.colour in (None, group.colour)
            and self.size in (None, group.size)
            and self.pattern in (None, group.pattern)
            and group.count in self.counts
        )


@dataclass(frozen=True)
class Relation:
    """Relation `name` from mention number `first` to mention number `second`."""

    name: str
    first: int
    second: int


@dataclass(frozen=True)
class Meaning:
    """The conjunction described at the top of this file; empty `backdrops` allow every backdrop."""

    mentions: tuple[Mention, ...] = ()
    relations: tuple[Relation, ...] = ()
    absent: tuple[Mention, ...] = ()
    backdrops: tuple[str, ...] = ()
    only: bool = False


@dataclass(frozen=True)
class Caption:
    """A sentence, its meaning, and its kinds, for reports by kind (`captions.KINDS`)."""

    text: str
    meaning: Meaning
    kinds: tuple[str, ...]


def holds(meaning: Meaning, scene: Scene) -> bool:
    """Whether `meaning` is true of `scene`, word for word as defined above: the slow oracle."""
    if meaning.backdrops and scene.backdrop not in meaning.backdrops:
        return False
    if meaning.only and len(scene.groups) != len(meaning.mentions):
        return False
    if any(mention.fits(group) for mention in meaning.absent for group in scene.groups):
        return False
    for chosen in permutations(range(len(scene.groups)), len(meaning.mentions)):
        fits = all(m.fits(scene.groups[i]) for m, i in zip(meaning.mentions, chosen, strict=True))
        if fits and all(
            related(scene, r.name, chosen[r.first], chosen[r.second]) for r in meaning.relations
        ):
            return True
    return False


def relevance(captions: Sequence[Caption], scenes: Sequence[Scene]) -> Bools:
    """Compute the captions that are true of each scene: bool [captions, scenes], as `holds`."""
    table = _Table.of(scenes)
    rows: dict[Meaning, Bools] = {}
    fits: dict[Mention, Bools] = {}
    truth = np.zeros((len(captions), len(scenes)), bool)
    for row, caption in enumerate(captions):
        meaning = caption.meaning
        for mention in (*meaning.mentions, *meaning.absent):
            if mention not in fits:
                fits[mention] = table.fits(mention)
        if meaning not in rows:
            rows[meaning] = table.holds(meaning, fits)
        truth[row] = rows[meaning]
    return truth


@dataclass(frozen=True)
class _Table:
    """Scenes as arrays; -1 stands for an absent group, which fits nothing."""

    attributes: dict[str, NDArray[np.int8]]  # each [MAX_GROUPS, scenes]
    counts: NDArray[np.int8]  # [MAX_GROUPS, scenes]
    backdrops: NDArray[np.str_]  # [scenes]
    relations: dict[str, Bools]  # each [MAX_GROUPS, MAX_GROUPS, scenes]

    @classmethod
    def of(cls, scenes: Sequence[Scene]) -> "_Table":
        shape = (MAX_GROUPS, len(scenes))
        attributes = {name: np.full(shape, -1, np.int8) for name in _VALUES}
        counts = np.full(shape, -1, np.int8)
        relations = {name: np.zeros((MAX_GROUPS, *shape), bool) for name in RELATIONS}
        centres = np.full((2, *shape), np.nan)
        boxes = np.full((2, *shape), np.nan)
        for column, scene in enumerate(scenes):
            for row, group in enumerate(scene.groups):
                for name, values in _VALUES.items():
                    attributes[name][row, column] = values.index(getattr(group, name))
                counts[row, column] = group.count
                centres[:, row, column] = group.centre
                boxes[:, row, column] = group.box[0], group.box[2]
            for action in scene.actions:
                relations[action.name][action.subject, action.target, column] = True
        backdrops = np.array([scene.backdrop for scene in scenes], np.str_)
        return cls(attributes, counts, backdrops, relations | _derived(relations, centres, boxes))

    def fits(self, mention: Mention) -> Bools:
        """Match a mention with groups, bool [MAX_GROUPS, scenes]."""
        found = np.isin(self.counts, mention.counts)
        for name, codes in self.attributes.items():
            value = getattr(mention, name)
            if value is not None:
                found &= codes == _VALUES[name].index(value)
        return found

    def holds(self, meaning: Meaning, fits: dict[Mention, Bools]) -> Bools:
        """Decide of which scenes a meaning is true, bool [scenes]."""
        truth = np.zeros(len(self.backdrops), bool)
        for chosen in permutations(range(MAX_GROUPS), len(meaning.mentions)):
            found = np.ones_like(truth)
            for mention, group in zip(meaning.mentions, chosen, strict=True):
                found &= fits[mention][group]
            for r in meaning.relations:
                found &= self.relations[r.name][chosen[r.first], chosen[r.second]]
            truth |= found
        for mention in meaning.absent:
            truth &= ~fits[mention].any(axis=0)
        if meaning.backdrops:
            truth &= np.isin(self.backdrops, meaning.backdrops)
        if meaning.only:
            truth &= (self.counts > 0).sum(axis=0) == len(meaning.mentions)
        return truth


_VALUES = {"shape": SHAPES, "colour": COLOURS, "size": SIZES, "pattern": PATTERNS}


def _derived(
    actions: dict[str, Bools], centres: NDArray[np.float64], sides: NDArray[np.float64]
) -> dict[str, Bools]:
    """Derive relations from actions and positions; NaN, for absent groups, makes them false."""
    dx, dy = centres[:, None, :] - centres[:, :, None]
    (left, right) = sides
    gap = np.maximum(left[:, None], left[None]) - np.minimum(right[:, None], right[None])
    contact = np.logical_or.reduce([actions[name] for name in TOUCHING])
    return {
        "left_of": dx >= APART,
        "above": dy >= APART,
        "next_to": (np.abs(dy) <= APART) & (gap <= APART),
        "on_top_of": np.logical_or.reduce([actions[name] for name in ON_TOP_OF]),
        "touching": contact | contact.swapaxes(0, 1),
    }
