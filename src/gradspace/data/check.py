"""Report of a dataset's contents and problems, before anyone trains on it for an hour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradspace.data.dataset import Dataset, Problem, Split
from gradspace.data.open import add_features_folder, read_dataset
from gradspace.data.pair_ids import text_numbers
from gradspace.data.problems import broken_items, structural_problems, without
from gradspace.data.vocabulary import SPECIAL, Vocabulary, words
from gradspace.progress import Progress
from gradspace.wording import counted

LISTED = 10
"""Number of problems listed in the text; `to_dict` has all of them."""


@dataclass(frozen=True)
class Spread:
    """Minimum, mean and maximum of a count."""

    least: int
    mean: float
    most: int

    def __str__(self) -> str:
        if self.least == self.most:
            return str(self.most)
        return f"{self.least} to {self.most}, {self.mean:.1f} on average"


@dataclass(frozen=True)
class SharedTexts:
    """Captions that several images have word for word, which are therefore positives of each."""

    num_texts: int
    """Number of different captions in the split."""
    num_shared: int
    """Number of them that several images have."""
    num_images: int
    """Number of images with such a caption."""
    most_images: int
    """Largest number of images with one and the same caption."""


@dataclass(frozen=True)
class SplitReport:
    """Figures of one split, without the items that have problems."""

    name: str
    num_images: int
    num_captions: int
    captions_per_image: Spread
    words_per_caption: Spread
    feature_shape: tuple[int, ...] | None
    shared: SharedTexts
    kinds: tuple[str, str]
    """Names of the two sides: images and captions, or passages and questions."""


@dataclass(frozen=True)
class DatasetReport:
    """Findings of a check; `problems` is empty for a dataset that can be trained on as it is."""

    name: str
    splits: tuple[SplitReport, ...]
    vocabulary_size: int
    """Number of words that occur four times or more in the training texts."""
    num_words: int
    """Number of different words in the training texts."""
    num_decoded: int
    """Number of images decoded in full."""
    problems: tuple[Problem, ...]
    drawn: str = ""
    """Explanation of how the splits were chosen, if the data names none."""

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON types; items have names, and indices of problems are left out."""
        problems = [
            {key: getattr(problem, key) for key in ("kind", "split", "item", "detail")}
            for problem in self.problems
        ]
        return {**asdict(self), "problems": problems}

    def __str__(self) -> str:
        lines = [self.name, *([f"  {self.drawn}"] if self.drawn else [])]
        for split in self.splits:
            shape = f", features {list(split.feature_shape)}" if split.feature_shape else ""
            image, caption = split.kinds
            sizes = f"{counted(split.num_images, image)}, {counted(split.num_captions, caption)}"
            lines += [
                f"  {split.name}: {sizes}{shape}",
                f"    {caption}s per {image}: {split.captions_per_image}",
                f"    words per {caption}: {split.words_per_caption}",
                *_told(split.shared, image, caption),
            ]
        lines += [
            f"  vocabulary: {counted(self.vocabulary_size, 'word')} seen 4 times or more in "
            f"training texts (of {self.num_words:,})",
            *([f"  images decoded: {self.num_decoded}"] if self.num_decoded else []),
            *_listed(self.problems),
        ]
        return "\n".join(lines)


def check_dataset(
    source: Dataset | str | Path,
    *,
    images: str | Path | None = None,
    features: str | Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> DatasetReport:
    """Check all captions and decode all images of a dataset, or of what `open_dataset` takes."""
    if isinstance(source, Dataset):
        dataset = source
    else:
        dataset = read_dataset(source, images, features, options, progress)
    if dataset.stream:
        raise ValueError(
            "a check decodes all pictures, so leave data.stream out; training on the stream names "
            "the samples that it cannot use"
        )
    dataset = without(dataset, structural_problems(dataset))
    num_decoded = sum(len(split.images) for split in dataset.splits.values() if split.images)
    dataset = without(dataset, broken_items(dataset, progress))
    dataset = add_features_folder(dataset, features)
    train = dataset.splits.get("train")
    captions = [*train.captions, *(train.passages or ())] if train else []
    return DatasetReport(
        name=dataset.name,
        splits=tuple(_report(split) for split in dataset.splits.values()),
        vocabulary_size=len(Vocabulary.build(captions)) - len(SPECIAL),
        num_words=len({word for caption in captions for word in words(caption)}),
        num_decoded=num_decoded,
        problems=dataset.problems,
        drawn=dataset.drawn,
    )


def _report(split: Split) -> SplitReport:
    return SplitReport(
        name=split.name,
        num_images=len(split.image_names),
        num_captions=len(split.captions),
        captions_per_image=_spread(np.bincount(split.image_of_caption).tolist()),
        words_per_caption=_spread([len(words(caption)) for caption in split.captions]),
        feature_shape=split.features.shape if split.features else None,
        shared=_shared(split),
        kinds=split.kinds,
    )


def _shared(split: Split) -> SharedTexts:
    text, image = text_numbers(split.captions), np.asarray(split.image_of_caption)
    pairs = np.unique(np.stack([text, image]), axis=1)
    num_images = np.bincount(pairs[0])
    at_several = num_images[pairs[0]] > 1
    return SharedTexts(
        num_texts=len(num_images),
        num_shared=int((num_images > 1).sum()),
        num_images=len(np.unique(pairs[1][at_several])),
        most_images=int(num_images.max(initial=0)),
    )


def _told(shared: SharedTexts, image: str, caption: str) -> list[str]:
    if not shared.num_shared:
        return []
    return [
        f"    the same {caption} at several {image}s: {shared.num_shared:,} of "
        f"{shared.num_texts:,} different ones, at {shared.num_images:,} {image}s; one at "
        f"{shared.most_images:,}"
    ]


def _spread(counts: Sequence[int]) -> Spread:
    mean = sum(counts) / len(counts) if counts else 0.0
    return Spread(min(counts, default=0), mean, max(counts, default=0))


def _listed(problems: Sequence[Problem]) -> list[str]:
    if not problems:
        return ["  no problems"]
    counts = Counter(problem.kind for problem in problems)
    kinds = ", ".join(f"{count} x {kind}" for kind, count in counts.items())
    lines = [f"  {counted(len(problems), 'problem')} ({kinds}):"]
    lines += [f"    {problem}" for problem in problems[:LISTED]]
    if len(problems) > LISTED:
        lines.append(f"    and {len(problems) - LISTED} more")
    return lines
