"""A page of listed negatives that may be none, for a person to judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gradspace.data.dataset import Split
from gradspace.files import write_atomically
from gradspace.mining import ComparedSuspect, MinedLists, Suspects, find_suspects
from gradspace.report.thumbnails import ReportThumbnails
from gradspace.report.write import template

MOST_LIKELY, MOST_ERRORS = 48, 24


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
    says: str
    """The caption of the listed image that is closest to it."""
    closeness: float
    own: Picture
    score: float
    positive_score: float


def write_audit(path: Path, lists: MinedLists, split: Split) -> Suspects:
    """Write one HTML file: likely false negatives, and then errors of the model."""
    thumbnails = ReportThumbnails()
    found = find_suspects(lists, split.captions, split.image_of_caption, MOST_LIKELY, MOST_ERRORS)

    def picture(image: int) -> Picture:
        name = split.image_names[image] if split.passages is None else split.passages[image]
        return Picture(name, thumbnails.add(split.name, split, image))

    def pairs(compared: Sequence[ComparedSuspect]) -> list[Pair]:
        return [
            Pair(
                caption=split.captions[each.suspect.caption],
                listed=picture(each.suspect.image),
                says="" if each.own_caption is None else split.captions[each.own_caption],
                closeness=each.closeness,
                own=picture(int(split.image_of_caption[each.suspect.caption])),
                score=each.suspect.score,
                positive_score=each.suspect.positive_score,
            )
            for each in compared
        ]

    page = template("audit.html").render(
        title=f"Suspicious negatives of {split.name}",
        likely=pairs(found.likely),
        errors=pairs(found.errors),
        pictures=thumbnails.pictures,
        entries=[],
    )
    with write_atomically(path) as file:
        file.write(page)
    return found
