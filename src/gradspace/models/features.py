"""Extraction of a whole dataset's features with a backbone, once and resumably."""

from __future__ import annotations

from pathlib import Path

import torch

from gradspace.data.batches import image_batches
from gradspace.data.dataset import Dataset
from gradspace.data.feature_files import FeatureWriter
from gradspace.data.inputs import PictureReading
from gradspace.files import check_out_folder
from gradspace.models.backbones import Backbone, evaluation_crop
from gradspace.progress import Progress


@torch.inference_mode()
def extract_features(
    dataset: Dataset,
    backbone: str,
    folder: Path,
    *,
    grid: bool,
    batch_size: int,
    num_workers: int,
    device: torch.device,
    size: int | None = None,
    whole: bool = False,
    progress: Progress | None = None,
) -> tuple[int, ...]:
    """Write the features of every split as float16, and return the shape of one image's.

    `size` and `whole` are those of `evaluation_crop`.
    """
    names = tuple(f"{split}.{ending}" for split in dataset.splits for ending in ("npy", "json"))
    check_out_folder(folder, "features", names)
    network = Backbone(backbone, grid=grid).to(device).eval()
    crop = evaluation_crop(network, size=size, whole=whole)
    example = torch.zeros(1, 3, crop.size, crop.size, device=device)
    shape = tuple(network(example).shape[1:])
    total, done = sum(len(split.image_names) for split in dataset.splits.values()), 0
    for split in dataset.splits.values():
        with FeatureWriter(
            folder, split, shape, backbone=f"{backbone}", size=size, whole=whole
        ) as writer:
            done += writer.num_done
            for pixels in image_batches(
                split,
                batch_size=batch_size,
                reading=PictureReading(crop),
                start=writer.num_done,
                num_workers=num_workers,
            ):
                writer.append(network(pixels.to(device)).float().cpu().numpy())
                done += len(pixels)
                if progress:
                    progress(done, total)
    return shape
