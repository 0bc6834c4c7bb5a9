"""Captions of a scene: clauses joined into sentences, each with its meaning.

A clause mentions groups that no other clause of the same caption mentions, so the meaning of a
caption is simply the conjunction of the meanings of its clauses.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from gradspace.data.scenes.lexicon import (
    ADJECTIVES,
    CONVERSES,
    NOUNS,
    VERBS,
    article,
    noun_phrase,
    place,
    plural,
    usual,
)
from gradspace.data.scenes.sample import pick
from gradspace.data.scenes.truth import Caption, Meaning, Mention, Relation
from gradspace.data.scenes.world import (
    ACTIONS,
    COLOURS,
    PATTERNS,
    RELATIONS,
    SHAPES,
    Scene,
    related,
)

CAPTIONS_PER_SCENE = 5
WORDS = range(5, 21)
KINDS = ("action", "spatial", "passive", "negation", "count", "partial", "only")


@dataclass(frozen=True)
class Clause:
    """Words, their meaning, and the numbers of the groups they mention."""

    text: str
    meaning: Meaning
    passive: bool = False
    used: frozenset[int] = frozenset()


def write_captions(scene: Scene, rng: np.random.Generator) -> tuple[Caption, ...]:
    """Write five different captions, each true of `scene` and 5 to 20 words long."""
    facts = relation_facts(scene)
    captions: dict[str, Caption] = {}
    while len(captions) < CAPTIONS_PER_SCENE:
        caption = write_caption(scene, facts, rng)
        if len(caption.text.split()) in WORDS:
            captions.setdefault(caption.text.rstrip("."), caption)
    return tuple(captions.values())


def relation_facts(scene: Scene) -> tuple[Relation, ...]:
    """List every relation that holds between two groups of `scene`."""
    pairs = tuple(permutations(range(len(scene.groups)), 2))
    return tuple(
        Relation(name, i, j) for name in RELATIONS for i, j in pairs if related(scene, name, i, j)
    )


def write_caption(scene: Scene, facts: Sequence[Relation], rng: np.random.Generator) -> Caption:
    """Write a caption: a relation or a list, perhaps with more groups, a place and a negation."""
    detail = rng.random()
    if facts and rng.random() < 0.65:
        clause = _relation(scene, facts, rng, detail)
    else:
        clause = _list(scene, rng, detail)
    rest = [i for i in range(len(scene.groups)) if i not in clause.used]
    if rest and rng.random() < 0.45:
        clause = _join(clause, _also(scene, facts, rng, rest, detail))
    if rng.random() < 0.5:
        clause = _placed(clause, scene, rng)
    if len(clause.used) == len(scene.groups) and rng.random() < 0.2:
        clause = _close(clause, rng)
    elif rng.random() < 0.25:
        clause = _join(clause, _negation(scene, rng))
    text = clause.text + ("." if rng.random() < 0.5 else "")
    return Caption(text, clause.meaning, _kinds(clause, scene))


def _kinds(clause: Clause, scene: Scene) -> tuple[str, ...]:
    """List which of KINDS a caption is; partial means that some group is not mentioned."""
    meaning = clause.meaning
    names = {relation.name for relation in meaning.relations}
    applies = {
        "action": not names.isdisjoint((*ACTIONS, "on_top_of", "touching")),
        "spatial": not names.isdisjoint(("left_of", "above", "next_to")),
        "passive": clause.passive,
        "negation": bool(meaning.absent),
        "count": any(min(mention.counts) > 1 for mention in meaning.mentions),
        "partial": len(meaning.mentions) < len(scene.groups),
        "only": meaning.only,
    }
    return tuple(kind for kind in KINDS if applies[kind])


def _join(first: Clause, second: Clause) -> Clause:
    """Concatenate two clauses; relation numbers of the second move up."""
    a, b, shift = first.meaning, second.meaning, len(first.meaning.mentions)
    moved = tuple(Relation(r.name, r.first + shift, r.second + shift) for r in b.relations)
    return Clause(
        first.text + second.text,
        replace(
            a,
            mentions=a.mentions + b.mentions,
            relations=a.relations + moved,
            absent=a.absent + b.absent,
        ),
        first.passive or second.passive,
        first.used | second.used,
    )


def _relation(
    scene: Scene, facts: Sequence[Relation], rng: np.random.Generator, detail: float
) -> Clause:
    """Relate two groups, in the active voice, the passive voice or by the converse relation."""
    actions = [fact for fact in facts if fact.name in ACTIONS]
    fact = pick(rng, actions if actions and rng.random() < 0.6 else facts)
    name, i, j = fact.name, fact.first, fact.second
    subject = noun_phrase(rng, scene.groups[i], detail)
    target = noun_phrase(rng, scene.groups[j], detail)
    verb = pick(rng, VERBS[name])
    style = rng.random()
    passive = bool(verb.passive) and style < 0.3
    if passive:
        be = "" if rng.random() < 0.3 else "are " if target.many else "is "
        text = f"{target.text} {be}{verb.passive} {subject.text}"
    elif name in CONVERSES and style < 0.5:
        text = f"{target.text} {pick(rng, CONVERSES[name]).active(target.many)} {subject.text}"
    elif name in ACTIONS and style < 0.45:
        has, it = ("have", "them") if target.many else ("has", "it")
        text = f"{target.text} {has} {subject.text} {verb.gerund} {it}"
    elif style < 0.7:
        text = f"{subject.text} {verb.gerund} {target.text}"
    else:
        text = f"{subject.text} {verb.active(subject.many)} {target.text}"
    meaning = Meaning((subject.mention, target.mention), (Relation(name, 0, 1),))
    return Clause(text, meaning, passive, frozenset((i, j)))


def _list(scene: Scene, rng: np.random.Generator, detail: float) -> Clause:
    """List one to three groups, in any order."""
    order = rng.permutation(len(scene.groups)).tolist()
    used = order[: pick(rng, (1, 2, 3), (0.45, 0.4, 0.15))]
    phrases = [noun_phrase(rng, scene.groups[i], detail) for i in used]
    texts = [phrase.text for phrase in phrases]
    text = texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
    be = "are" if phrases[0].many else "is"
    opening = usual(rng, ("", f"there {be} ", "we see ", "i can see "))
    return Clause(
        opening + text, Meaning(tuple(phrase.mention for phrase in phrases)), used=frozenset(used)
    )


def _also(
    scene: Scene,
    facts: Sequence[Relation],
    rng: np.random.Generator,
    rest: Sequence[int],
    detail: float,
) -> Clause:
    """Add one or two groups that were not mentioned yet."""
    facts = [fact for fact in facts if fact.first in rest and fact.second in rest]
    if facts and rng.random() < 0.5:
        clause = _relation(scene, facts, rng, detail)
        return replace(clause, text=f"{pick(rng, (' and ', ' while ', ', and '))}{clause.text}")
    i = pick(rng, rest)
    phrase = noun_phrase(rng, scene.groups[i], detail)
    be = "are" if phrase.many else "is"
    opening = pick(rng, (", with ", f", and there {be} also ", ", plus ", ", along with "))
    return Clause(opening + phrase.text, Meaning((phrase.mention,)), used=frozenset((i,)))


def _close(clause: Clause, rng: np.random.Generator) -> Clause:
    """Say that nothing else is there."""
    ending = pick(rng, (", and nothing else", " and that is all", ", nothing more"))
    return replace(clause, text=clause.text + ending, meaning=replace(clause.meaning, only=True))


def _placed(clause: Clause, scene: Scene, rng: np.random.Generator) -> Clause:
    """Say where the scene is, before or after the rest."""
    where, backdrops = place(rng, scene.backdrop)
    text = f"{where}, {clause.text}" if rng.random() < 0.25 else f"{clause.text} {where}"
    return replace(clause, text=text, meaning=replace(clause.meaning, backdrops=backdrops))


def _negation(scene: Scene, rng: np.random.Generator) -> Clause:
    """Name something absent: a shape, a colour, a pattern, or a shape in another colour."""
    candidates = (
        [Mention(shape) for shape in SHAPES],
        [Mention(colour=colour) for colour in COLOURS],
        [Mention(pattern=pattern) for pattern in PATTERNS[1:]],
        [Mention(group.shape, colour) for group in scene.groups for colour in COLOURS],
    )
    absent = pick(rng, pick(rng, candidates, (0.4, 0.2, 0.2, 0.2)))
    while any(absent.fits(group) for group in scene.groups):
        absent = pick(rng, pick(rng, candidates, (0.4, 0.2, 0.2, 0.2)))
    words = [usual(rng, ADJECTIVES[v]) for v in (absent.colour, absent.pattern) if v]
    if absent.shape is None:
        options: tuple[str, ...] = (f", nothing is {words[0]}", f", but nothing {words[0]}")
    else:
        noun = usual(rng, NOUNS[absent.shape])
        one, several = " ".join([*words, noun]), " ".join([*words, plural(noun)])
        options = (f", but no {one}", f", with no {several}", f", without {article(one)}")
    return Clause(pick(rng, options), Meaning(absent=(absent,)))
