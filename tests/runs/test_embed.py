"""A split is embedded as it is read: in parts, by any number of workers, in order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from data.examples import write_images
from models import tiny

from gradspace.data.dataset import make_split
from gradspace.data.image_files import ImageFolder, StoredImages
from gradspace.data.inputs import PictureReading
from gradspace.data.vocabulary import Vocabulary
from gradspace.models import ImageInput, TextInput, build_model
from gradspace.models.prepare.pictures import CentreCrop
from gradspace.runs.embed import embed_pictures
from gradspace.runs.represent import PICTURES, embed_split
from gradspace.runs.system import System


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_pictures_of_a_split_are_embedded_one_by_one_whoever_decodes_them(tmp_path: Path) -> None:
    names = [f"{number}.png" for number in range(PICTURES + 3)]
    store = ImageFolder(write_images(tmp_path / "images", names))
    described = [(name, [f"a dog beside {name}"]) for name in names]
    split = make_split("test", described, StoredImages(store, names))
    vocabulary = Vocabulary.build(split.captions, min_count=1)
    torch.manual_seed(0)
    model = build_model(
        "vse++",
        image_input=ImageInput(backbone=tiny.resnet(tmp_path / "network")),
        text_input=TextInput(vocabulary_size=len(vocabulary)),
        width=8,
    ).eval()
    crop = CentreCrop(size=32, resize=36)
    system = System(
        model, vocabulary.encode_batch, torch.device("cpu"), reading=PictureReading(crop)
    )
    assert split.images is not None
    expected = [embed_pictures(system, [split.images.load(i)]) for i in range(len(names))]
    for num_workers in (0, 2):
        found = embed_split(replace(system, num_workers=num_workers), split)
        torch.testing.assert_close(found.images, torch.cat(expected))
    assert len({tuple(row.flatten().tolist()) for row in expected}) == len(names), "none alike"
