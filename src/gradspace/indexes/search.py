"""Search in an index by a sentence, a picture, or both: `gs.search`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image

from gradspace.data.image_files import decode, image_endings
from gradspace.files import check_is_file
from gradspace.indexes.contract import Hit, Kind
from gradspace.indexes.searcher import Query, Searcher, open_searcher
from gradspace.indexes.where import parse_condition
from gradspace.processes import choose_device
from gradspace.runs.embed import note_on_words


def search(
    index: str | Path | Searcher,
    query: str | None = None,
    *,
    image: str | Path | Image.Image | None = None,
    image_weight: float | None = None,
    like: str | None = None,
    top: int = 10,
    find: Kind | None = None,
    where: Sequence[str] = (),
    device: str | None = None,
    say: Callable[[str], None] | None = None,
) -> list[Hit]:
    """Find the images or captions that fit a sentence, an image, or both, the best first.

    Args:
        index: the folder of an index; for many queries, the result of `open_searcher`.
        query: a sentence, or the name of an image file.
        image: an image to combine with the sentence.
        image_weight: weight of the image relative to the sentence, 0 to 1; 0.5 by default.
        like: the key of an item of the index, to find similar ones.
        find: "image" or "caption"; by default images, if there are any.
        where: conditions such as "folder=holiday" or "taken>=2024".
        say: a function that gets a sentence on words that the model has never seen.

    Examples:
        >>> search("photos.index", "two dogs in the snow")[0].item.key  # doctest: +SKIP
        'winter/dogs.jpg'
    """
    conditions = [parse_condition(text) for text in where]
    asked = _query(query, image, image_weight, like)
    searcher = index
    if not isinstance(searcher, Searcher):
        searcher = open_searcher(Path(searcher), choose_device(device))
    [hits] = searcher.search([asked], top, find or searcher.index.kinds[0], conditions)
    if say and (note := note_on_words(searcher.system, asked.text)):
        say(note)
    return hits


def _query(
    text: str | None, image: str | Path | Image.Image | None, weight: float | None, like: str | None
) -> Query:
    if image is None and text is not None and _names_an_image(text):
        text, image = "", Path(text)
    if not text and image is None and not like:
        raise ValueError("say what to search for: a sentence, an image file, or --like KEY")
    if weight is not None and (image is None or not text):
        raise ValueError("--image-weight weighs an --image against a sentence: give both")
    picture = image if image is None or isinstance(image, Image.Image) else _read(Path(image))
    return Query(text or "", picture, like or "", 0.5 if weight is None else weight)


def _names_an_image(text: str) -> bool:
    return Path(text).suffix.lower() in image_endings() and (
        Path(text).is_file() or " " not in text
    )


def _read(path: Path) -> Image.Image:
    check_is_file(path, "an image")
    try:
        with path.open("rb") as file:
            return decode(file)
    except Exception as error:  # a damaged file can make a decoder raise anything
        raise ValueError(f"{path} cannot be read as an image: {error}") from error
