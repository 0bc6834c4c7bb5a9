"""Words of captions: synonyms, verbs, and noun phrases with their meaning."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradspace.data.scenes.sample import pick
from gradspace.data.scenes.truth import Mention
from gradspace.data.scenes.world import INDOORS, OUTDOORS, SceneGroup

# The first word of each is the most frequent.
NOUNS = {
    "ball": ("ball", "sphere", "orb"),
    "cube": ("cube", "box", "block"),
    "cone": ("cone", "party hat"),
    "star": ("star", "five-pointed star"),
    "ring": ("ring", "hoop"),
    "cylinder": ("cylinder", "can", "drum"),
    "heart": ("heart", "love heart"),
    "diamond": ("diamond", "gem", "jewel"),
}
ADJECTIVES = {
    "red": ("red", "crimson", "scarlet"),
    "orange": ("orange", "amber"),
    "yellow": ("yellow", "lemon"),
    "green": ("green", "emerald"),
    "blue": ("blue", "azure"),
    "purple": ("purple", "violet"),
    "pink": ("pink", "rosy"),
    "white": ("white", "ivory"),
    "small": ("small", "little", "tiny"),
    "large": ("large", "big", "huge"),
    "plain": ("plain", "unpatterned"),
    "striped": ("striped", "stripy"),
    "dotted": ("dotted", "spotted", "polka-dot"),
    "checkered": ("checkered", "chequered", "checked"),
    "shiny": ("shiny", "glossy", "gleaming"),
}
WITH_PATTERN = {
    "striped": "with stripes",
    "dotted": "with dots",
    "checkered": "with a checkerboard pattern",
}
PLACES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("table",), ("on a wooden table", "on a table", "on the tabletop")),
    (("rug",), ("on a rug", "on the carpet")),
    (("tiles",), ("on a tiled floor", "on the tiles")),
    (("grass",), ("on the grass", "on a lawn", "on a green meadow")),
    (("snow",), ("in the snow", "on snowy ground")),
    (("sand",), ("on the sand", "on a beach")),
    (("water",), ("on the water", "at sea")),
    (("night",), ("at night", "in a starry sky", "in the night sky")),
    (INDOORS, ("indoors", "inside a house")),
    (OUTDOORS, ("outdoors", "out in the open")),
)
DETERMINERS: tuple[tuple[tuple[int, ...], tuple[str, ...]], ...] = (
    ((1,), ("a", "a", "a", "one", "a single")),
    ((2,), ("two", "two", "a pair of", "a couple of")),
    ((3,), ("three", "three", "a trio of")),
    ((4,), ("four", "four", "a group of four")),
    ((2, 3, 4), ("some",)),
    ((3, 4), ("several", "a few")),
)


@dataclass(frozen=True)
class Verb:
    """A verb phrase for a relation; `passive` is the participle with its preposition."""

    singular: str
    plural: str
    gerund: str
    passive: str = ""

    def active(self, many: bool) -> str:
        return self.plural if many else self.singular


def _be(phrase: str) -> Verb:
    return Verb(f"is {phrase}", f"are {phrase}", phrase)


VERBS: dict[str, tuple[Verb, ...]] = {
    "leaning_against": (
        Verb("leans against", "lean against", "leaning against", "leaned against by"),
        Verb("leans on", "lean on", "leaning on", "leaned on by"),
        _be("tilted against"),
    ),
    "stacked_on": (
        Verb("is stacked on", "are stacked on", "stacked on", "topped by"),
        Verb("sits on", "sit on", "sitting on", "sat on by"),
    ),
    "balancing_on": (
        Verb("balances on", "balance on", "balancing on", "balanced on by"),
        Verb("wobbles on", "wobble on", "wobbling on"),
    ),
    "hanging_from": (
        Verb("hangs from", "hang from", "hanging from"),
        Verb("dangles from", "dangle from", "dangling from"),
        _be("suspended from"),
    ),
    "chasing": (
        Verb("chases", "chase", "chasing", "chased by"),
        Verb("pursues", "pursue", "pursuing", "pursued by"),
        Verb("races after", "race after", "racing after"),
    ),
    "pushing": (
        Verb("pushes", "push", "pushing", "pushed by"),
        Verb("shoves", "shove", "shoving", "shoved by"),
    ),
    "orbiting": (
        Verb("orbits", "orbit", "orbiting", "orbited by"),
        Verb("circles", "circle", "circling", "circled by"),
    ),
    "shining_on": (
        Verb("shines on", "shine on", "shining on", "shone on by"),
        Verb("lights up", "light up", "lighting up", "lit up by"),
    ),
    "on_top_of": (_be("on top of"), _be("resting on")),
    "touching": (Verb("touches", "touch", "touching", "touched by"),),
    "left_of": (_be("to the left of"), _be("left of")),
    "above": (_be("above"), _be("over"), _be("higher than")),
    "next_to": (_be("next to"), _be("beside")),
}
CONVERSES = {
    "left_of": (_be("to the right of"), _be("right of")),
    "above": (_be("below"), _be("under"), _be("lower than")),
}


@dataclass(frozen=True)
class NounPhrase:
    """Words for one group, what they say of it, and whether they take a plural verb."""

    text: str
    mention: Mention
    many: bool


def usual(rng: np.random.Generator, words: Sequence[str]) -> str:
    """Choose the first of `words` more than half of the time, otherwise any of them."""
    return words[0] if rng.random() < 0.45 else pick(rng, words)


def article(words: str) -> str:
    return f"an {words}" if words[0] in "aeiou" else f"a {words}"


def plural(noun: str) -> str:
    return noun + "es" if noun.endswith("x") else noun + "s"


def noun_phrase(rng: np.random.Generator, group: SceneGroup, detail: float) -> NounPhrase:
    """Describe `group`; `detail` between 0 and 1 is how much of it the words tell."""
    colour = group.colour if rng.random() < 0.4 + 0.5 * detail else None
    size = group.size if rng.random() < 0.15 + 0.4 * detail else None
    rare = 0.2 if group.pattern == "plain" else 1.0
    pattern = group.pattern if rng.random() < rare * (0.15 + 0.6 * detail) else None
    if rng.random() < 0.06 and (colour or pattern):
        values = [value for value in (size, colour, pattern) if value]
        words = " and ".join(usual(rng, ADJECTIVES[value]) for value in values)
        return NounPhrase(f"something {words}", Mention(None, colour, size, pattern), False)
    fitting = [(counts, words) for counts, words in DETERMINERS if group.count in counts]
    counts, determiners = fitting[0] if rng.random() < 0.85 else pick(rng, fitting)
    after = WITH_PATTERN.get(pattern or "", "") if rng.random() < 0.25 else ""
    before = (size, None if after else pattern, colour)
    adjectives = [usual(rng, ADJECTIVES[value]) for value in before if value]
    noun = usual(rng, NOUNS[group.shape])
    many = group.count > 1
    phrase = " ".join([*adjectives, plural(noun) if many else noun])
    determiner = pick(rng, determiners)
    phrase = article(phrase) if determiner == "a" else f"{determiner} {phrase}"
    mention = Mention(group.shape, colour, size, pattern, counts)
    return NounPhrase(f"{phrase} {after}".strip(), mention, many)


def place(rng: np.random.Generator, backdrop: str) -> tuple[str, tuple[str, ...]]:
    """Choose words for the place of a scene, with the backdrops they may mean."""
    exact, broad = [(words, names) for names, words in PLACES if backdrop in names]
    words, names = exact if rng.random() < 0.8 else broad
    return pick(rng, words), names
