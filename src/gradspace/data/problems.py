"""Problems of the items of a dataset, found in one place for reports and for skipping.

Readers report what they cannot place in a split (a malformed row, a caption without image). This
file finds missing images, duplicate images, images in two splits, images without captions, empty
captions, and by reading everything broken images (truncated, say) and broken features (NaN).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from gradspace.data.dataset import (
    Dataset,
    Features,
    Images,
    PickedFeatures,
    PickedImages,
    Problem,
    Split,
)
from gradspace.data.image_files import StoredImages
from gradspace.progress import Progress

NUM_THREADS = 8
"""Number of decoding threads; most decoding runs without the GIL, and a queue helps disks."""
PIECE = 256


def structural_problems(dataset: Dataset) -> list[Problem]:
    """Find every problem visible without reading images; each image or caption is named once."""
    by_split: list[list[Problem]] = []
    elsewhere: dict[str, str] = {}
    # From the last split to the first: an image in two splits stays in the one that is tested on.
    for split in reversed(list(dataset.splits.values())):
        by_split.append([*_image_problems(split, elsewhere), *_caption_problems(split)])
        elsewhere |= dict.fromkeys(split.image_names, split.name)
    return [problem for found in reversed(by_split) for problem in found]


def _image_problems(split: Split, elsewhere: dict[str, str]) -> Iterator[Problem]:
    num_captions = Counter(
        image
        for image, caption in zip(split.image_of_caption.tolist(), split.captions, strict=True)
        if caption.strip()
    )
    seen: set[str] = set()
    what, of_it = split.kinds
    for index, name in enumerate(split.image_names):
        missing = split.images.missing(index) if isinstance(split.images, StoredImages) else ""
        other = elsewhere.get(name, split.name)
        if name in seen:
            yield Problem(f"duplicate {what}", split.name, name, image=index)
        elif _role(other) != _role(split.name):
            yield Problem(f"{what} in two splits", split.name, name, f"also in {other}", index)
        elif missing:
            yield Problem("missing image", split.name, name, missing, index)
        elif split.passages is not None and not split.passages[index].strip():
            yield Problem("empty passage", split.name, name, image=index)
        elif not num_captions[index]:
            yield Problem(f"{what} without {of_it}", split.name, name, image=index)
        seen.add(name)


def _role(split: str) -> str:
    """Name the role of a split: COCO's `testall` contains `test` on purpose."""
    return "test" if split.startswith("test") else split


def _caption_problems(split: Split) -> Iterator[Problem]:
    number: Counter[int] = Counter()
    for index, (image, caption) in enumerate(
        zip(split.image_of_caption.tolist(), split.captions, strict=True)
    ):
        number[image] += 1
        if not 0 <= image < len(split.image_names):
            detail = f"its image is {image} of {len(split.image_names)}"
            yield Problem("caption without image", split.name, caption, detail, caption=index)
        elif not caption.strip():
            item = f"{split.kinds[1]} {number[image]} of {split.image_names[image]}"
            yield Problem(f"empty {split.kinds[1]}", split.name, item, caption=index)


def broken_items(
    dataset: Dataset, progress: Progress | None = None, *, images: bool = True
) -> list[Problem]:
    """Decode every image (unless `images` is false), read all features, and list the failures."""
    parts = [
        (split, kind, part)
        for split in dataset.splits.values()
        for kind, part in (
            ("image", split.images if images else None),
            ("features", split.features),
        )
        if part is not None
    ]
    total = sum(len(part) for _, _, part in parts)
    found: list[Problem] = []
    done = 0
    with ThreadPoolExecutor(NUM_THREADS) as threads:
        for split, kind, part in parts:
            for index, error in enumerate(_loading_errors(part, threads)):
                if error:
                    name = split.image_names[index]
                    found.append(Problem(f"broken {kind}", split.name, name, error, index))
                done += 1
                if progress:
                    progress(done, total)
    return found


def _loading_errors(part: Images | Features, threads: ThreadPoolExecutor) -> Iterator[str]:
    """Yield an error per image, empty if there is none; in pieces, so that Ctrl-C acts quickly."""

    def load(index: int) -> str:
        try:
            loaded = part.load(index)
        except ValueError as error:
            return str(error)
        finite = not isinstance(loaded, np.ndarray) or np.isfinite(loaded).all()
        return "" if finite else "NaN or infinite"

    for start in range(0, len(part), PIECE):
        yield from threads.map(load, range(start, min(start + PIECE, len(part))))


def without(dataset: Dataset, problems: Iterable[Problem]) -> Dataset:
    """Leave the images and captions with these problems out of a dataset, and list them in it."""
    problems = list(problems)
    splits = {
        name: _without(split, [problem for problem in problems if problem.split == name])
        for name, split in dataset.splits.items()
    }
    return replace(dataset, splits=splits, problems=(*dataset.problems, *problems))


def _without(split: Split, problems: list[Problem]) -> Split:
    keep_image = np.ones(len(split.image_names), bool)
    keep_image[[p.image for p in problems if p.image is not None]] = False
    keep_caption = np.ones(len(split.captions), bool)
    keep_caption[[p.caption for p in problems if p.caption is not None]] = False
    keep_caption[keep_caption] = keep_image[split.image_of_caption[keep_caption]]
    if keep_image.all() and keep_caption.all():
        return split
    images, captions = np.flatnonzero(keep_image), np.flatnonzero(keep_caption)
    return replace(
        split,
        image_names=[split.image_names[index] for index in images.tolist()],
        captions=[split.captions[index] for index in captions.tolist()],
        image_of_caption=(np.cumsum(keep_image) - 1)[split.image_of_caption[captions]],
        images=PickedImages(split.images, images) if split.images else None,
        features=PickedFeatures(split.features, images) if split.features else None,
        caption_ids=[split.caption_ids[index] for index in captions.tolist()]
        if split.caption_ids
        else None,
        passages=[split.passages[index] for index in images.tolist()]
        if split.passages is not None
        else None,
    )
