"""What a dataset is, whatever its layout on disk: splits of images with their captions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gradspace.wording import counted

if TYPE_CHECKING:  # a stream is made of what is here
    from gradspace.data.shards.stream import ShardStream

Indices = NDArray[np.int64]
RegionKind = Literal["grid", "detector"]
"""Cells of a backbone's feature map, or boxes around what a detector found."""


class Images(Protocol):
    """Pictures by index; safe to use from several worker processes."""

    def __len__(self) -> int: ...

    def load(self, index: int) -> Image.Image:
        """RGB; a ValueError that names the file where it is missing or broken."""


class Features(Protocol):
    """Precomputed features by index: `shape` is that of one image, [regions, width] or [width]."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def load(self, index: int) -> NDArray[np.float32]: ...


def regions_of(features: Features) -> RegionKind:
    """What the regions of features are, "detector" where they do not say it."""
    regions: RegionKind = getattr(features, "regions", "detector")
    return regions


@dataclass(frozen=True)
class Problem:
    """Something wrong with one item of a dataset, and the item to leave out because of it."""

    kind: str
    split: str
    item: str
    """The image, caption or line as the user knows it."""
    detail: str = ""
    image: int | None = None
    """Index in the split of the image that the problem makes useless."""
    caption: int | None = None

    def __str__(self) -> str:
        where = f" ({self.split})" if self.split else ""
        return f"{self.kind}: {self.item}{where}{', ' if self.detail else ''}{self.detail}"


@dataclass(frozen=True)
class Split:
    """Images, their captions, and which caption belongs to which image."""

    name: str
    image_names: Sequence[str]
    captions: Sequence[str]
    image_of_caption: NDArray[np.int64]
    """[captions]: the index of the image that a caption describes."""
    images: Images | None = None
    features: Features | None = None
    caption_ids: Sequence[int] | None = None
    """The numbers that the dataset's authors gave its captions, where they did."""
    passages: Sequence[str] | None = None
    """Texts in the place of the images: the captions are then questions about them."""
    drawn: str = ""
    """How the split came about, where the data does not say what belongs to it."""

    @property
    def kinds(self) -> tuple[str, str]:
        """What people call the two sides."""
        return ("image", "caption") if self.passages is None else ("passage", "question")

    @property
    def sizes(self) -> str:
        """`10 images / 20 captions`"""
        image, caption = self.kinds
        return f"{counted(len(self.image_names), image)} / {counted(len(self.captions), caption)}"

    @property
    def announcement(self) -> str:
        """How large a split is that nobody has chosen; empty where somebody has."""
        return f"{self.name}: {self.sizes}; {self.drawn}" if self.drawn else ""


@dataclass(frozen=True)
class Dataset:
    """The splits of one dataset, "train", "dev" and "test" where it has them."""

    name: str
    splits: Mapping[str, Split]
    problems: tuple[Problem, ...] = ()
    """What is not in the splits because something is wrong with it."""
    stream: ShardStream | None = None
    """In the place of a split "train": shards that are read while they are trained on."""

    @property
    def description(self) -> str:
        """One line: splits with their sizes, what was left out, and how they came about."""
        streamed = [f"train {self.stream}"] if self.stream else []
        named = [f"{name} {split.sizes}" for name, split in self.splits.items()]
        sizes = ", ".join([*streamed, *named])
        left_out = [f"{counted(len(self.problems), 'item')} left out"] if self.problems else []
        return "; ".join([f"{self.name}: {sizes}", *left_out, *filter(None, [self.drawn])])

    @property
    def drawn(self) -> str:
        """How the splits came about, where the data does not say what belongs to them."""
        return next((split.drawn for split in self.splits.values()), "")

    def split(self, name: str) -> Split:
        if name == "train" and self.stream:
            raise ValueError(
                f"the training data of {self.name} are a stream, which is not known as a whole: "
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
    """A split from image names with their captions."""
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
    """Short, and another one for other images or captions."""
    text = "\0".join((*images, "", *captions, ""))
    return blake2b(text.encode(), digest_size=8).hexdigest()


@runtime_checkable
class GathersFeatures(Protocol):
    """Features that read many images in one go."""

    def gather(self, indices: Indices) -> NDArray[np.float32]: ...


def gather_features(features: Features, indices: Indices) -> NDArray[np.float32]:
    """The features of many images, float32 [len(indices), *shape], as a new array."""
    if isinstance(features, GathersFeatures):
        return features.gather(indices)
    return np.stack([features.load(int(index)) for index in indices])


def check_features(split: Split, indices: Indices, finite: NDArray[np.bool_]) -> None:
    """That features are numbers; `finite` tells it for each of the images."""
    if not finite.all():
        name = split.image_names[int(indices[finite.argmin()])]
        raise ValueError(
            f"the features of {name!r} in split {split.name!r} are NaN or infinite: "
            "`gradspace data check --features` lists all of them, data.skip_broken=true leaves "
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
