"""A page of listed negatives that may be none, for a person to judge."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gradspace.data.dataset import Split
from gradspace.files import write_atomically
from gradspace.mining.audit import Suspect, most_suspicious
from gradspace.mining.lists import MinedLists
from gradspace.report.thumbnails import ReportThumbnails
from gradspace.report.write import template

MOST_PAIRS = 48
LOOKED_AT = 5000


@dataclass(frozen=True)
class Picture:
    """An image of the split; without a key where it cannot be shown."""

    name: str
    key: str | None


@dataclass(frozen=True)
class Pair:
    """A caption with the image it is a mined negative of, and with its own."""

    caption: str
    listed: Picture
    own: Picture
    score: float
    positive_score: float


def _one_per_caption(lists: MinedLists) -> list[Suspect]:
    """The most suspicious pair of every caption: many of one caption would hide the others."""
    found: dict[int, Suspect] = {}
    for suspect in most_suspicious(lists, LOOKED_AT):
        if suspect.score > suspect.positive_score:
            found.setdefault(suspect.caption, suspect)
    return list(found.values())[:MOST_PAIRS]


def write_audit(path: Path, lists: MinedLists, split: Split) -> None:
    """One HTML file with the most suspicious pairs of mined lists."""
    thumbnails = ReportThumbnails()

    def picture(image: int) -> Picture:
        name = split.image_names[image] if split.passages is None else split.passages[image]
        return Picture(name, thumbnails.add(split.name, split, image))

    pairs = [
        Pair(
            caption=split.captions[found.caption],
            listed=picture(found.image),
            own=picture(int(split.image_of_caption[found.caption])),
            score=found.score,
            positive_score=found.positive_score,
        )
        for found in _one_per_caption(lists)
    ]
    title = f"Suspicious negatives of {split.name}"
    page = template("audit.html").render(
        title=title, pairs=pairs, pictures=thumbnails.pictures, entries=[]
    )
    with write_atomically(path) as file:
        file.write(page)
