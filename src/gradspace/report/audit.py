"""Page of mined negatives that may be false, for a person to judge."""

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
    """An image of the split; its key is None if it cannot be shown."""

    name: str
    key: str | None


@dataclass(frozen=True)
class Pair:
    """A caption, the image that was mined as its negative, and its own image."""

    caption: str
    listed: Picture
    says: str
    """The listed image's caption that is closest to this one."""
    closeness: float
    own: Picture
    score: float
    positive_score: float


def write_audit(path: Path, lists: MinedLists, split: Split) -> Suspects:
    """Write an HTML file of likely false negatives, followed by errors of the model."""
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
