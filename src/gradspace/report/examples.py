"""Examples of what two objectives of a group retrieve for the same queries (AOQ Fig. 2 and 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from gradspace.comparison.entries import Entry, Group
from gradspace.data.dataset import Dataset, Split, digest
from gradspace.report.flips import OUTCOMES, choose_queries, outcome_of, queries_by_outcome
from gradspace.report.retrieval import Retrieved, retrieve
from gradspace.report.thumbnails import ReportThumbnails
from gradspace.runs.data import open_recipe
from gradspace.runs.numbers import ARROWS
from gradspace.runs.represent import represent_split
from gradspace.runs.system import load_system
from gradspace.scores.represented import Represented


@dataclass(frozen=True)
class Shown:
    """An image or a caption on the page."""

    text: str
    """The caption, or the first one of the image."""
    picture: str | None = None
    """Key of the thumbnail."""
    name: str = ""
    """Name of the image."""
    right: bool = False


@dataclass(frozen=True)
class Answer:
    """Items that one run retrieves for a query, and the rank of the best right one."""

    shown: list[Shown]
    rank: int


@dataclass(frozen=True)
class Example:
    """A query with the answers of each run."""

    way: str
    outcome: str
    query: Shown
    answers: list[Answer]


@dataclass(frozen=True)
class Examples:
    """Examples of one dataset and model."""

    sides: list[Entry]
    """One run each of one or two objectives."""
    flips: dict[str, dict[str, int]]
    """Number of test queries by direction (i2t, t2i) and outcome."""
    examples: list[Example] = field(default_factory=list)
    problem: str = ""
    """Sentence on why there are no examples, or none with pictures."""

    @property
    def directions(self) -> list[tuple[str, str]]:
        """Directions with their arrows, t2i first as in the paper."""
        return [(way, ARROWS[way]) for way in ("t2i", "i2t")]

    @property
    def filters(self) -> list[tuple[str, str]]:
        """Filters to choose from: the outcomes that each lets through, and its label."""
        everything = (" ".join(OUTCOMES[len(self.sides)]), "all")
        if len(self.sides) == 1:
            return [everything, *self.outcomes.items()]
        differ = ("only-a only-b", "only where they differ")
        return [everything, differ, *list(self.outcomes.items())[:2]]

    @property
    def outcomes(self) -> dict[str, str]:
        """Label of each outcome."""
        if len(self.sides) == 1:
            return {"right": "right at rank 1", "wrong": "not right"}
        a, b = (side.objective for side in self.sides)
        words = (f"only {a} right", f"only {b} right", "both right", "neither right")
        return dict(zip(OUTCOMES[2], words, strict=True))


def choose_sides(group: Group) -> list[Entry]:
    """Choose the best objective by mean rsum, and the table's first or else the second best.

    Each is represented by its run with the lowest seed.
    """
    means = {o: np.mean([e.results.metrics["rsum"] for e in seeds]) for o, seeds in group.items()}
    ordered = sorted(group, key=lambda objective: -means[objective])
    first = next(iter(group))
    chosen = ordered[:2] if first == ordered[0] else [ordered[0], first]
    return [min(group[objective], key=lambda entry: entry.seed) for objective in chosen]


class ExampleMaker:
    """Makes the examples of all groups, opening datasets once and sharing pictures."""

    def __init__(self, device: torch.device, num_queries: int) -> None:
        self.device = device
        self.num_queries = num_queries
        """Number of queries per direction."""
        self.thumbnails = ReportThumbnails()
        self._opened: dict[str, Dataset] = {}

    def make(self, group: Group) -> Examples:
        """Make examples as far as possible; `problem` tells what is missing."""
        sides = choose_sides(group)
        chosen = queries_by_outcome([side.results for side in sides])
        flips = {way: {o: len(q) for o, q in found.items()} for way, found in chosen.items()}
        try:
            splits = [self._split(side) for side in sides]
            embedded = [self._embed(*pair) for pair in zip(sides, splits, strict=True)]
        except Exception as error:  # the report must be written in any case
            reason = " ".join(str(error).split()) or type(error).__name__
            return Examples(
                sides, flips, problem=f"There are no examples here: {reason.rstrip('.')}."
            )
        examples = [
            self._example(way, query, sides, splits[0], embedded)
            for way, found in chosen.items()
            for query in choose_queries(found, self.num_queries)
        ]
        return Examples(sides, flips, examples, _missing_pictures(splits[0], examples))

    def _split(self, side: Entry) -> Split:
        """Open the split that a run was evaluated on, if it is unchanged."""
        recipe = side.run.recipe().data
        key = recipe.model_dump_json()
        if key not in self._opened:
            self._opened[key] = open_recipe(recipe, run=side.run.folder)
        split = self._opened[key].splits[side.results.split]
        if digest(split.image_names, split.captions) != side.results.digest:
            raise ValueError(f"{recipe.source} has changed since {side.name} was evaluated on it")
        return split

    def _embed(self, side: Entry, split: Split) -> Represented:
        return represent_split(load_system(side.run.folder, self.device), split)

    def _example(
        self,
        way: str,
        query: int,
        sides: Sequence[Entry],
        split: Split,
        embedded: Sequence[Represented],
    ) -> Example:
        data = sides[0].results
        found = [retrieve(e, way, query, folds=data.folds) for e in embedded]
        asked, answer = (
            (self._image, self._caption) if way == "i2t" else (self._caption, self._image)
        )
        return Example(
            way,
            outcome_of([one.is_right for one in found]),
            asked(data.digest, split, query, False),
            [
                Answer([answer(data.digest, split, *pair) for pair in _pairs(one)], one.rank)
                for one in found
            ],
        )

    def _image(self, dataset: str, split: Split, image: int, right: bool) -> Shown:
        if split.passages is not None:
            return Shown(split.passages[image], name=split.image_names[image], right=right)
        captions = np.flatnonzero(split.image_of_caption == image)
        text = split.captions[int(captions[0])] if len(captions) else ""
        key = self.thumbnails.add(dataset, split, image)
        return Shown(text, key, split.image_names[image], right)

    def _caption(self, dataset: str, split: Split, caption: int, right: bool) -> Shown:
        return Shown(split.captions[caption], right=right)


def _pairs(found: Retrieved) -> list[tuple[int, bool]]:
    return list(zip(found.candidates, found.right, strict=True))


def _missing_pictures(split: Split, examples: Sequence[Example]) -> str:
    if split.passages is not None:
        return ""
    if split.images is None:
        return "This dataset has features and no images: an image is shown as its first caption."
    images = [e.query if e.way == "i2t" else shown for e in examples for shown in _answered(e)]
    missing = {shown.name for shown in images if shown.name and shown.picture is None}
    if not missing:
        return ""
    if len(missing) == 1:
        return "1 image cannot be read and is shown as its first caption."
    return f"{len(missing)} images cannot be read and are shown as their first caption."


def _answered(example: Example) -> list[Shown]:
    return [shown for answer in example.answers for shown in answer.shown]
