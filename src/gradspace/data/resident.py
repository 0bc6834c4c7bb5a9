"""Features kept on the GPU, as reading and moving them would take longer than a training step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradspace.data.dataset import (
    Dataset,
    Features,
    Indices,
    RegionKind,
    Split,
    check_features,
    gather_features,
    regions_of,
)

SHARE = 1 / 16
"""Largest part of a GPU's memory for the features of a dataset."""
AT_ONCE = 256 * 2**20
"""Bytes read in one go."""


@dataclass(frozen=True, eq=False)
class ResidentFeatures:
    """Features of a split, [images, ...], on a device."""

    rows: Tensor
    regions: RegionKind = "detector"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.rows.shape[1:])

    def __len__(self) -> int:
        return len(self.rows)

    def load(self, index: int) -> NDArray[np.float32]:
        row: NDArray[np.float32] = self.rows[index].float().cpu().numpy()
        return row

    def on_device(self, indices: Indices) -> Tensor:
        """Gather rows on the device, float32 [len(indices), ...]."""
        places = torch.from_numpy(indices).to(self.rows.device, non_blocking=True)
        return self.rows[places].float()


def keep_features(dataset: Dataset, device: torch.device) -> Dataset:
    """Move the features of a dataset to a GPU, if it has room for them."""
    if device.type != "cuda":
        return dataset
    found = [split.features for split in dataset.splits.values() if split.features is not None]
    needed = sum(len(features) * prod(features.shape) * 4 for features in found)
    if needed > SHARE * torch.cuda.get_device_properties(device).total_memory:
        return dataset
    splits = {name: _kept(split, device) for name, split in dataset.splits.items()}
    return replace(dataset, splits=splits)


def _kept(split: Split, device: torch.device) -> Split:
    if split.features is None:
        return split
    found = resident(split.features, device)
    finite = found.rows.flatten(1).isfinite().all(1).cpu().numpy()
    check_features(split, np.arange(len(finite)), finite)
    return replace(split, features=found)


def resident(features: Features, device: torch.device) -> ResidentFeatures:
    """Load features to a device, in half precision if that loses nothing."""
    step = max(1, AT_ONCE // (4 * max(prod(features.shape), 1)))
    indices = np.arange(len(features))
    parts = [
        torch.from_numpy(gather_features(features, indices[start : start + step])).to(device)
        for start in range(0, len(features), step)
    ]
    halves = [part.half() for part in parts]
    if all(torch.equal(half.float(), part) for half, part in zip(halves, parts, strict=True)):
        parts = halves
    rows = torch.cat(parts) if parts else torch.zeros(0, *features.shape)
    return ResidentFeatures(rows, regions_of(features))
