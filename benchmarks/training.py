"""Suite: cost of an objective, its tracking and the loader beside a training step of VSE++.

It also measures whole steps of VSE++, split into model, objective and the rest, and a backbone with
the memory of its layers released and kept.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import ResNetConfig, ResNetModel

import gradspace as gs
from benchmarks.case import Call, Case, Measurement, Run
from benchmarks.random_training import (
    batches_forever,
    feature_trainer,
    model_table,
    random_features,
    temporary_run,
)
from benchmarks.step_parts import COLUMNS, PARTS, prepare_part, row
from benchmarks.tables import Table, megabytes, milliseconds, time_ratio
from gradspace.data.batches import training_batches
from gradspace.data.captions import EncodedCaptions
from gradspace.data.dataset import Split, make_split
from gradspace.data.feature_files import FeatureFile
from gradspace.data.image_files import StoredImages, open_store
from gradspace.data.inputs import FEATURES, PictureReading
from gradspace.data.vocabulary import Vocabulary
from gradspace.models import ImageInput, TextInput, build_model
from gradspace.models.prepare.pictures import RandomCrop
from gradspace.processes import keep_freed_memory
from gradspace.runs.represent import PICTURES
from gradspace.scores.positives import Positives

OBJECTIVES = ("triplet-hard", "triplet", "nt-xent", "smooth-ap", "circle/sigmoid-ms")
CONSTANT = "VSE++ step, constant loss"
TRACKING = "COCOS in both directions, once"
LOADERS = {
    "loader, pooled features of 2048": (2048,),
    "loader, 36 regions of 2048": (36, 2048),
    "loader, 640 x 480 JPEG to 224 px, 2 workers": None,
}
BACKBONE = "ResNet-50 forward, 224 px"
KEPT = f"{BACKBONE}, freed memory kept as on the command line"
TRAINED = "VSE++"
WHOLE_STEPS = ("triplet-hard", "circle/sigmoid-ms")
"""Objectives of the steps that are split into parts; a case's `who` is the part."""
NUM_WORDS = 8000
BATCHES = 4
"""Number of batches over which a loader is timed; one of them fills its workers."""


def cases(quick: bool) -> list[Case]:
    batch, width = (4, 16) if quick else (128, 1024)
    steps = [CONSTANT, *(f"{name}, both ways" for name in OBJECTIVES), TRACKING]
    what = (*steps, *LOADERS, BACKBONE, KEPT)
    return [Case("training", "ours", name, batch, 1, width) for name in what] + [
        Case("training", part, f"{TRAINED}, {objective}", batch, 1, width)
        for objective in WHOLE_STEPS
        for part in PARTS
    ]


def prepare(case: Case) -> Call:
    if case.who in PARTS:
        return Call(_part(case))
    if case.what in LOADERS:
        return Call(_loader(case, LOADERS[case.what]), share=BATCHES)
    torch.manual_seed(0)
    if case.what in (BACKBONE, KEPT):
        return Call(_backbone(case))
    if case.what == TRACKING:
        scores = torch.rand(case.images, case.images)
        own = gs.match_ids(range(case.images), range(case.images))
        objective = gs.objective("circle/sigmoid-ms")
        return Call(lambda: _track(objective, scores, own))
    return Call(_constant_step(case) if case.what == CONSTANT else _objective(case))


def _part(case: Case) -> Run:
    """Make a run of a whole training step, as in `gradspace train`, or of one part of it."""
    trainer = feature_trainer(
        random_features(TRAINED, "cpu"),
        temporary_run(),
        "cpu",
        precision="float32",
        model=model_table(TRAINED, case.width),
        objective={"name": case.what.rpartition(", ")[2]},
        training={"batch_size": case.images},
    )
    step = prepare_part(case.who, trainer, batches_forever(trainer), warm_up=1)

    def run() -> dict[str, float]:
        step()
        return {}

    return run


def _constant_step(case: Case) -> Run:
    """Make a run of VSE++, forward and backward, on pooled features and captions of 8-15 words."""
    model = build_model(
        "vse++",
        image_input=ImageInput(shape=(2048,)),
        text_input=TextInput(vocabulary_size=NUM_WORDS),
        width=case.width,
    )
    images = torch.rand(case.images, 2048)
    lengths = torch.randint(8, 16, (case.images,))
    tokens = torch.randint(4, NUM_WORDS, (case.images, 15))
    direction = torch.randn(case.images, case.width)

    def step() -> dict[str, float]:
        model.zero_grad()
        image_vectors, text_vectors = model(images, tokens, lengths)
        value = ((image_vectors + text_vectors) * direction).sum()
        value.backward()
        return {"loss": value.item()}

    return step


def _objective(case: Case) -> Run:
    """Make a run of what an objective adds to the step: forward, and backward to the embeddings.

    The difference of two whole steps, timed in two processes, would be smaller than their noise.
    """
    loss = gs.RetrievalLoss(case.what.removesuffix(", both ways"))
    ids = torch.arange(case.images)
    vectors = torch.nn.functional.normalize(torch.randn(2, case.images, case.width), dim=2)
    images, texts = (v.clone().requires_grad_() for v in vectors)

    def both_ways() -> dict[str, float]:
        value = loss(images, texts, ids, ids)
        value.backward()
        return {"loss": value.item()}

    return both_ways


def _track(objective: gs.Objective, scores: Tensor, own: Positives) -> dict[str, float]:
    by_image = gs.cocos(objective, scores, own)
    by_text = gs.cocos(objective, scores.t(), own.transpose())
    return {"C^B": by_image.per_batch + by_text.per_batch}


def _loader(case: Case, shape: tuple[int, ...] | None) -> Run:
    """Make a run that reads `BATCHES` batches of random images from files."""
    folder = Path(tempfile.mkdtemp(prefix="gradspace-bench-"))
    atexit.register(shutil.rmtree, folder)
    split = _photos(case, folder) if shape is None else _features(case, folder, shape)
    encode = Vocabulary.build(split.captions, min_count=1).encode_batch
    captions = EncodedCaptions(encode, split.captions)

    def read() -> dict[str, float]:
        loader = training_batches(
            split,
            captions,
            batch_size=case.images,
            seed=0,
            epoch=0,
            reading=PictureReading(RandomCrop()) if shape is None else FEATURES,
            num_workers=2 if shape is None else 0,
        )
        batches = [batch for batch, _ in zip(loader, range(BATCHES), strict=False)]
        return {"images": float(sum(len(batch.images) for batch in batches))}

    return read


def _backbone(case: Case) -> Run:
    if case.what == KEPT:
        keep_freed_memory()
    network = ResNetModel(ResNetConfig()).eval()
    pixels = torch.rand(case.images, 3, 224, 224).contiguous(memory_format=torch.channels_last)

    @torch.inference_mode()
    def embed() -> dict[str, float]:
        parts = [pixels[i : i + PICTURES] for i in range(0, case.images, PICTURES)]
        return {"mean": sum(network(part).pooler_output.mean().item() for part in parts)}

    return embed


def _described(num_images: int) -> list[tuple[str, list[str]]]:
    return [(f"{i}.jpg", [f"a photo of {i} things beside a house"]) for i in range(num_images)]


def _features(case: Case, folder: Path, shape: tuple[int, ...]) -> Split:
    rows = np.random.default_rng(0).random((case.images * 8, *shape), dtype=np.float32)
    np.save(folder / "features.npy", rows)
    described = _described(case.images * 8)
    return make_split("train", described, features=FeatureFile(folder / "features.npy"))


def _photos(case: Case, folder: Path) -> Split:
    described = _described(case.images * BATCHES)
    noise = np.random.default_rng(0).integers(0, 255, (60, 80, 3), dtype=np.uint8)
    picture = Image.fromarray(noise).resize((640, 480))
    for name, _ in described:
        picture.save(folder / name, quality=90)
    names = [name for name, _ in described]
    return make_split("train", described, StoredImages(open_store(folder), names))


def check(measured: Mapping[Case, Measurement]) -> None:
    """Check nothing, as every row does something else."""


def tables(measured: Mapping[Case, Measurement]) -> list[Table]:
    step = next(m for case, m in measured.items() if case.what == CONSTANT)
    size = next(iter(measured)).images
    rows = [
        [case.what, milliseconds(m), time_ratio(m, step), megabytes(m)]
        for case, m in measured.items()
        if case.who not in PARTS
    ]
    columns = [f"batch of {size}", "ms", "times the constant step", "extra MB"]
    return [
        Table("Training: the objective and the loader beside the model", columns, rows),
        _whole_steps(measured),
    ]


def _whole_steps(measured: Mapping[Case, Measurement]) -> Table:
    steps = [case for case in measured if case.who == "step"]
    rows = [
        [case.what, str(case.images), *row([measured[replace(case, who=part)] for part in PARTS])]
        for case in steps
    ]
    columns = ["model, objective", "pairs", *COLUMNS]
    return Table("Training: whole steps on pooled features, float32", columns, rows)
