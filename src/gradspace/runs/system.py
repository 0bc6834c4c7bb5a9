"""A model with everything that turns files into its inputs; runs train it, and users load it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradspace.data.captions import Encode, Spans
from gradspace.data.dataset import Dataset, RegionKind, Split, regions_of
from gradspace.data.inputs import FEATURES, PassageReading, PictureReading, Reading
from gradspace.data.shards.stream import ShardStream
from gradspace.data.shards.words import stream_vocabulary
from gradspace.data.vocabulary import Vocabulary
from gradspace.data.word_vectors import read_word_vectors
from gradspace.models import ImageInput, RetrievalModel, TextInput, build_model, model_info
from gradspace.models.backbones import Backbone, evaluation_crop, training_crop
from gradspace.models.blip import Blip, is_blip
from gradspace.models.dual import DualEncoder
from gradspace.models.dual_network import dual_tokenizer
from gradspace.models.prepare.image_processor import ImageProcessor
from gradspace.models.prepare.tokenizer import Tokenizer
from gradspace.models.pretrained import Pretrained
from gradspace.models.text import GRUEncoder
from gradspace.processes import choose_device, is_first
from gradspace.progress import Progress
from gradspace.runs.checkpoint import with_prefix, without_prefix
from gradspace.runs.folder import Run, open_run
from gradspace.runs.recipe import Recipe, make_recipe
from gradspace.tensor_files import load_tensors
from gradspace.wording import counted

Words = Vocabulary | Tokenizer
"""Converters of captions to tokens."""
OWN_FOLDERS = ("runs", "comparisons", "demo")
"""Folders that commands write to unless told otherwise."""


@dataclass(frozen=True)
class System:
    """A model, with the conversion of captions to tokens, and of images to its input."""

    model: RetrievalModel
    encode: Encode
    device: torch.device
    feature_shape: tuple[int, ...] | None = None
    """Shape of one image's features; None if the model reads pixels or passages."""
    feature_regions: RegionKind = "detector"
    """Kind of their regions."""
    reading: Reading = FEATURES
    """Conversion of the images of a split to the model's input, in evaluation."""
    training_reading: Reading = FEATURES
    """Conversion in training, where pictures may be cropped at random."""
    spans: Spans | None = None
    """Function that locates tokens in a caption, if this is known."""
    unknown_words: Callable[[str], list[str]] = lambda caption: []
    """Function that lists the words of a caption that the model has never seen."""
    num_workers: int = 0
    """Number of processes that decode pictures when a whole split is embedded."""
    note: str = ""
    """Sentence shown to users about its initial weights."""

    def autocast(self, precision: str) -> AbstractContextManager[Any]:
        if precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=getattr(torch, precision))


def prepare_system(
    run: Run,
    recipe: Recipe,
    dataset: Dataset,
    device: torch.device,
    progress: Progress | None = None,
) -> System:
    """Make a new system, or the one into which the checkpoint of a stopped run will be loaded."""
    if not run.last.exists():
        return new_system(recipe, dataset, run, device, progress)
    _, record = load_tensors(run.last)
    return empty_system(run, record, device)


def new_system(
    recipe: Recipe,
    dataset: Dataset,
    run: Run,
    device: torch.device,
    progress: Progress | None = None,
) -> System:
    """Build what the recipe describes, and write to the run what is needed to load it again.

    `progress` is called while the captions of a stream are read to make a vocabulary.
    """
    train = dataset.stream or dataset.split("train")
    image_input = _image_input(recipe, train)
    torch.manual_seed(recipe.seed)
    words, text_input = _new_text_side(recipe, train, run, progress)
    system = _assemble(recipe, image_input, text_input, words, device)
    if recipe.init is not None:
        _start_from(recipe.init, system)
    elif recipe.model.word_vectors is not None:
        assert isinstance(words, Vocabulary)
        system = _with_word_vectors(system, words, recipe.model.word_vectors)
    for part in system.model.modules():
        if isinstance(part, Pretrained) and is_first():
            part.save_config(run.folder / part.kind.replace("_", "-"))
    return system


def _start_from(folder: Path, system: System) -> None:
    """Load the best weights of another run, of the same model on the same captions.

    A backbone keeps its own weights if that run had its features instead.
    """
    first = open_run(folder)
    tensors, _ = load_tensors(first.best)
    weights: dict[str, Tensor] = {}
    for name, part in system.model.named_modules():
        if isinstance(part, Backbone):
            weights |= with_prefix(name, part.state_dict())
    weights |= without_prefix("model", tensors)
    try:
        system.model.load_state_dict(weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise ValueError(
            f"init: the weights of {folder} do not fit; it must be the same model, trained on the "
            f"same captions ({reason})"
        ) from error


def _with_word_vectors(system: System, words: Vocabulary, path: Path) -> System:
    """Initialise the word embeddings from a file, and note how many words it has."""
    encoders = [part for part in system.model.modules() if isinstance(part, GRUEncoder)]
    if not encoders:
        raise ValueError(f"model.word_vectors: {system.model.name} has no word embeddings")
    numbers = words.numbers
    found = read_word_vectors(path, numbers, encoders[0].word_width)
    tokens, vectors = torch.tensor(list(found)), torch.from_numpy(np.stack(list(found.values())))
    for encoder in encoders:
        encoder.set_words(tokens.to(system.device), vectors)
    note = f"{len(found):,} of {counted(len(numbers), 'word')} start from the vectors of {path}"
    return replace(system, note=note)


def load_system(folder: Path, device: torch.device | None = None) -> System:
    """Load the best weights of a run, or a pretrained model, ready to embed."""
    if is_pretrained(folder):
        return pretrained_system(folder, device or choose_device())
    run = open_run(folder)
    if not run.best.exists():
        raise ValueError(f"{folder} has no best.safetensors yet: train it for at least one epoch")
    tensors, record = load_tensors(run.best)
    system = empty_system(run, record, device or choose_device())
    try:
        system.model.load_state_dict(without_prefix("model", tensors))
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise ValueError(f"{run.best} does not fit this run's recipe ({reason})") from error
    system.model.eval()
    return system


def is_pretrained(place: Path) -> bool:
    """Whether a name is a transformers model, not a run: a folder, or `owner/name` on the hub.

    A name inside an existing folder, or a folder that gradspace writes to, is taken for a misspelt
    run.
    """
    if place.exists():
        return (place / "config.json").is_file() and not (place / "recipe.toml").exists()
    if len(place.parts) != 2 or place.is_absolute() or place.parent.is_dir():
        return False
    return place.parts[0] not in ("..", "~", *OWN_FOLDERS)


def pretrained_system(place: Path, device: torch.device) -> System:
    """Load CLIP, SigLIP, BLIP ... from a folder or the hub, without any training."""
    if is_blip(place):
        words, reading = Tokenizer(place), PictureReading(ImageProcessor(place))
        model = Blip(place).to(device).eval()
        unknown = words.unknown_words
        return System(model, words.encode, device, reading=reading, unknown_words=unknown)
    name = str(place)
    recipe = make_recipe({"model": {"name": "dual", "pretrained": name}})
    inputs = ImageInput(backbone=name), TextInput(encoder=name, fine_tune=False)
    system = _assemble(recipe, *inputs, dual_tokenizer(name), device)
    system.model.eval()
    return system


def empty_system(run: Run, record: Mapping[str, Any], device: torch.device) -> System:
    """Build the system of a run; the weights of the checkpoint of this record are not loaded."""
    recipe, feature_shape = run.recipe(), record["feature_shape"]
    if recipe.model.pretrained:
        place = run.folder / "pretrained"
        inputs = (
            ImageInput(backbone=place, pretrained=False),
            TextInput(encoder=place, pretrained=False),
        )
        tokenizer = dual_tokenizer(run.folder / "tokenizer", config_from=place)
        return _assemble(recipe, *inputs, tokenizer, device)
    if model_info(recipe.model.name).build.reads_passages:
        image_input = ImageInput(passages=True)
    elif feature_shape is None:
        image_input = ImageInput(backbone=run.folder / "backbone", pretrained=False)
    else:
        regions = record.get("feature_regions", "detector")  # which earlier runs did not record
        image_input = ImageInput(shape=tuple(feature_shape), regions=regions)
    words: Words
    if recipe.model.text_encoder:
        words = Tokenizer(run.folder / "tokenizer")
        encoder = run.folder / "text-encoder"
        text_input = TextInput(
            encoder=encoder, pretrained=False, mask=words.mask, pieces=words.pieces
        )
    else:
        words = Vocabulary.load(run.folder / "vocabulary.json")
        text_input = TextInput(vocabulary_size=len(words), mask=words.mask)
    return _assemble(recipe, image_input, text_input, words, device)


def _image_input(recipe: Recipe, train: Split | ShardStream) -> ImageInput:
    pixels = recipe.model.backbone or recipe.model.pretrained
    if isinstance(train, ShardStream):
        if not pixels:
            raise ValueError("a stream has pictures: set model.backbone or model.pretrained")
        return ImageInput(backbone=pixels)
    if pixels:
        if train.images is None:
            key = "backbone" if recipe.model.backbone else "pretrained"
            has = "features" if train.features else "passages"
            raise ValueError(f"model.{key} needs images, and the dataset has only {has}")
        return ImageInput(backbone=pixels)
    if train.passages is not None:
        return ImageInput(passages=True)
    if train.features is None:
        raise ValueError(
            "the dataset has images and no features: set model.backbone to train from the images, "
            "or write features with `gradspace data features` and give them as data.features"
        )
    regions = recipe.data.regions or regions_of(train.features)
    return ImageInput(shape=train.features.shape, regions=regions)


def _new_text_side(
    recipe: Recipe, train: Split | ShardStream, run: Run, progress: Progress | None
) -> tuple[Words, TextInput]:
    network = recipe.model.text_encoder or recipe.model.pretrained
    if network:
        tokenizer = dual_tokenizer(network) if recipe.model.pretrained else Tokenizer(network)
        if is_first():
            tokenizer.save(run.folder / "tokenizer")
        return tokenizer, TextInput(encoder=network, mask=tokenizer.mask, pieces=tokenizer.pieces)
    vocabulary = _vocabulary(recipe, train, progress)
    if is_first():
        vocabulary.save(run.folder / "vocabulary.json")
    return vocabulary, TextInput(vocabulary_size=len(vocabulary), mask=vocabulary.mask)


def _vocabulary(
    recipe: Recipe, train: Split | ShardStream, progress: Progress | None
) -> Vocabulary:
    """Make the vocabulary of the training captions, or reuse that of the weights of `init`."""
    if recipe.init is not None:
        known = open_run(recipe.init).folder / "vocabulary.json"
        if known.is_file():
            return Vocabulary.load(known)
    masks, marks = model_info(recipe.model.name).build.masks_words, recipe.model.punctuation
    if isinstance(train, ShardStream):
        return stream_vocabulary(train, punctuation=marks, mask=masks, progress=progress)
    captions = [*train.captions, *(train.passages or ())]
    return Vocabulary.build(captions, punctuation=marks, mask=masks)


def _assemble(
    recipe: Recipe,
    image_input: ImageInput,
    text_input: TextInput,
    words: Words,
    device: torch.device,
) -> System:
    model = build_model(
        recipe.model.name, image_input=image_input, text_input=text_input, **recipe.model.parameters
    ).to(device)
    encode = words.encode_batch if isinstance(words, Vocabulary) else words.encode
    system = System(model, encode, device, unknown_words=words.unknown_words)
    if image_input.passages:
        passages = PassageReading(encode)
        return replace(system, reading=passages, training_reading=passages)
    num_workers = recipe.training.num_workers
    if isinstance(model, DualEncoder):
        pictures = PictureReading(model.dual.processor)
        return replace(system, reading=pictures, training_reading=pictures, num_workers=num_workers)
    system = replace(system, spans=words.spans)
    backbones = [part for part in model.modules() if isinstance(part, Backbone)]
    if not backbones:
        return replace(system, feature_shape=image_input.shape, feature_regions=image_input.regions)
    pixels: dict[str, Any] = {
        "size": recipe.model.image_size,
        "whole": recipe.model.whole_images,
    }
    return replace(
        system,
        reading=PictureReading(evaluation_crop(backbones[0], **pixels)),
        training_reading=PictureReading(training_crop(backbones[0], **pixels)),
        num_workers=num_workers,
    )
