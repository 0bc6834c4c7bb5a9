"""Datasets, whatever their layout on disk: splits of images with their captions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gradspace.wording import counted

if TYPE_CHECKING:  # streams are built from the classes of this file
    from gradspace.data.shards.stream import ShardStream

Indices = NDArray[np.int64]
RegionKind = Literal["grid", "detector"]
"""Kinds of regions: cells of a backbone's feature map, or boxes found by a detector."""


class Images(Protocol):
    """Pictures by index; safe to use from several worker processes."""

    def __len__(self) -> int: ...

    def load(self, index: int) -> Image.Image:
        """Load a picture as RGB; a ValueError names a file that is missing or broken."""


class Features(Protocol):
    """Precomputed features by index; `shape` is that of one image, [regions, width] or [width]."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def load(self, index: int) -> NDArray[np.float32]: ...


def regions_of(features: Features) -> RegionKind:
    """Return the kind of regions of features; "detector" if they do not say."""
    regions: RegionKind = getattr(features, "regions", "detector")
    return regions


@dataclass(frozen=True)
class Problem:
    """A problem of one item of a dataset, which is left out because of it."""

    kind: str
    split: str
    item: str
    """The image, caption or line as the user knows it."""
    detail: str = ""
    image: int | None = None
    """Index in the split of the image that the problem makes unusable."""
    caption: int | None = None

    def __str__(self) -> str:
        where = f" ({self.split})" if self.split else ""
        return f"{self.kind}: {self.item}{where}{', ' if self.detail else ''}{self.detail}"


@dataclass(frozen=True)
class Split:
    """A split: images, their captions, and the image of each caption."""

    name: str
    image_names: Sequence[str]
    captions: Sequence[str]
    image_of_caption: NDArray[np.int64]
    """[captions]: the index of the image that a caption describes."""
    images: Images | None = None
    features: Features | None = None
    caption_ids: Sequence[int] | None = None
    """Numbers that the dataset's authors gave its captions, if any."""
    passages: Sequence[str] | None = None
    """Texts that take the place of images; the captions are then questions about them."""
    drawn: str = ""
    """Explanation of how the split was chosen, if the data does not define it."""

    @property
    def kinds(self) -> tuple[str, str]:
        """Names of the two sides: image and caption, or passage and question."""
        return ("image", "caption") if self.passages is None else ("passage", "question")

    @property
    def sizes(self) -> str:
        """Sizes in words, such as `10 images / 20 captions`."""
        image, caption = self.kinds
        return f"{counted(len(self.image_names), image)} / {counted(len(self.captions), caption)}"

    @property
    def announcement(self) -> str:
        """Sentence on the size of a split chosen by shares; empty if the data defines the split."""
        return f"{self.name}: {self.sizes}; {self.drawn}" if self.drawn else ""


@dataclass(frozen=True)
class Dataset:
    """The splits of a dataset, usually "train", "dev" and "test"."""

    name: str
    splits: Mapping[str, Split]
    problems: tuple[Problem, ...] = ()
    """Problems of the items that were left out of the splits."""
    stream: ShardStream | None = None
    """Shards read during training, in place of a split "train"."""

    @property
    def description(self) -> str:
        """Line with the splits and their sizes, the number of items left out, and `drawn`."""
        streamed = [f"train {self.stream}"] if self.stream else []
        named = [f"{name} {split.sizes}" for name, split in self.splits.items()]
        sizes = ", ".join([*streamed, *named])
        left_out = [f"{counted(len(self.problems), 'item')} left out"] if self.problems else []
        return "; ".join([f"{self.name}: {sizes}", *left_out, *filter(None, [self.drawn])])

    @property
    def drawn(self) -> str:
        """Explanation of how the splits were chosen, if the data does not define them."""
        return next((split.drawn for split in self.splits.values()), "")

    def split(self, name: str) -> Split:
        if name == "train" and self.stream:
            raise ValueError(
                f"the training data of {self.name} is a stream, which cannot be read as a split: "
                "leave data.stream out"
            )
        if name not in self.splits:
            raise ValueError(f"{self.name} has no split {name!r}, only {', '.join(self.splits)}")
        return self.splits[name]


def make_split(
    name: str,
    described: Sequence[tuple[str, Sequence[str]]],
    images: Images | None = None,
    features: Features | None = None,
) -> Split:
    """Make a split from image names with their captions."""
    num_captions = [len(captions) for _, captions in described]
    return Split(
        name=name,
        image_names=[image for image, _ in described],
        captions=[caption for _, captions in described for caption in captions],
        image_of_caption=np.repeat(np.arange(len(described)), num_captions),
        images=images,
        features=features,
    )


def digest(images: Sequence[str], captions: Sequence[str]) -> str:
    """Hash the names and captions of a split to a short text."""
    text = "\0".join((*images, "", *captions, ""))
    return blake2b(text.encode(), digest_size=8).hexdigest()


@runtime_checkable
class GathersFeatures(Protocol):
    """Features that can read many images in one go."""

    def gather(self, indices: Indices) -> NDArray[np.float32]: ...


def gather_features(features: Features, indices: Indices) -> NDArray[np.float32]:
    """Read the features of many images, float32 [len(indices), *shape], into a new array."""
    if isinstance(features, GathersFeatures):
        return features.gather(indices)
    return np.stack([features.load(int(index)) for index in indices])


def check_features(split: Split, indices: Indices, finite: NDArray[np.bool_]) -> None:
    """Raise a ValueError for features that are not `finite`, a value per image."""
    if not finite.all():
        name = split.image_names[int(indices[finite.argmin()])]
        raise ValueError(
            f"the features of {name!r} in split {split.name!r} are NaN or infinite: "
            "`gradspace data check --features` lists all of them, and data.skip_broken=true leaves "
            "them out"
        )


@dataclass(frozen=True, eq=False)
class PickedImages:
    """Some of the images of another source, in the order of `indices`."""

    images: Images
    indices: Indices

    def __len__(self) -> int:
        return len(self.indices)

    def load(self, index: int) -> Image.Image:
        return self.images.load(int(self.indices[index]))


@dataclass(frozen=True, eq=False)
class PickedFeatures:
    """Some of the features of another source, in the order of `indices`, which may repeat."""

    features: Features
    indices: Indices

    @property
    def shape(self) -> tuple[int, ...]:
        return self.features.shape

    @property
    def regions(self) -> RegionKind:
        return regions_of(self.features)

    def __len__(self) -> int:
        return len(self.indices)

    def load(self, index: int) -> NDArray[np.float32]:
        return self.features.load(int(self.indices[index]))

    def gather(self, indices: Indices) -> NDArray[np.float32]:
        return gather_features(self.features, self.indices[indices])
