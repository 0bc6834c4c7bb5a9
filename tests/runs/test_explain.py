"""Explanations as users get them: their own words, grids, and the part of a picture."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from models import tiny
from models.explained import explained, make, pairs
from PIL import Image
from small_runs import train_small

from gradspace.data.inputs import PictureReading
from gradspace.data.vocabulary import Vocabulary, words
from gradspace.models import ImageInput, RetrievalModel, TextInput
from gradspace.models.backbones import Backbone
from gradspace.models.prepare.pictures import CentreCrop
from gradspace.models.prepare.tokenizer import Tokenizer
from gradspace.runs.explain import Explanation, explain_pair
from gradspace.runs.system import System, load_system

SEEN = ["a red dog runs", "the İstanbul dog's naïve ball", "two dogs, Δέλτα", "ΔΣ 42"]
CAPTIONS = {
    "Two RED dogs, the T-shirt's (blue) 42.": "Two RED dogs the T shirt's blue 42",
    "  naïve   Δέλτα\tΔΣ 🐕 ": "naïve Δέλτα ΔΣ",
    "İstanbul": "İ stanbul",  # lower-cased, it has a dot that stands apart
    "zebra dog": "zebra dog",
    "": "",
    "...": "",
}


def system_of(model: RetrievalModel, text: Vocabulary | Tokenizer, **given: Any) -> System:
    encode = text.encode_batch if isinstance(text, Vocabulary) else text.encode
    return System(model, encode, torch.device("cpu"), spans=text.spans, **given)


def with_vocabulary(name: str = "vse-infinity", **settings: Any) -> System:
    vocabulary = Vocabulary.build(SEEN, min_count=1)
    model = make(name, text_input=TextInput(vocabulary_size=len(vocabulary)), **settings)
    return system_of(model, vocabulary)


def explain(system: System, caption: str, image: Any = None, **given: Any) -> Explanation:
    image = pairs()[0][0] if image is None else image
    found = explain_pair(system, image, caption, **given)
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["vse-infinity", "bfan"])
@pytest.mark.parametrize(("caption", "expected"), CAPTIONS.items())
def test_words_are_those_of_the_caption(name: str, caption: str, expected: str) -> None:
    system = with_vocabulary(name)
    found = explain(system, caption)
    assert [word for word, _ in found.words] == expected.split()
    tokens, lengths = system.encode([caption])
    whole = explained(system.model, pairs()[0][:1], tokens, lengths)
    assert whole.words is not None
    assert [value for _, value in found.words] == pytest.approx(whole.words[0, 1:-1].tolist())
    assert found.rest == pytest.approx(float(whole.words[0, 0] + whole.words[0, -1]))
    assert sum(value for _, value in found.words) + found.rest == pytest.approx(found.score)
    assert found.regions is not None
    assert found.regions.sum() == pytest.approx(found.score)
    if whole.attention is not None:
        assert found.attention is not None
        np.testing.assert_allclose(found.attention[:, 0], whole.attention[0, 1:-1])


@given(st.text())
@example("İİ'İ x")
def test_spans_of_a_vocabulary_are_where_its_words_are(caption: str) -> None:
    spans = Vocabulary.build(SEEN, min_count=1).spans(caption)
    found = [span for span in spans if span]
    assert [None, *found, None] == spans
    assert all(before[1] <= after[0] for before, after in pairwise(found))
    for (start, end), word in zip(found, words(caption), strict=True):
        assert word.casefold() in caption[start:end].casefold()


def subword_tokenizer(folder: Path, kind: str) -> Tokenizer:
    """Tokenizer of subwords, mostly single characters or bytes; reads 16 tokens."""
    from tokenizers import Tokenizer as Rust
    from tokenizers import models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<unk>", "<s>", "</s>"]
    pieces: Any
    trainer: Any
    if kind == "bytes":
        pieces = Rust(models.BPE())
        pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=270, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
    else:
        pieces = Rust(models.Unigram())
        pieces.pre_tokenizer = pre_tokenizers.Metaspace(split=kind == "sentencepiece")
        trainer = trainers.UnigramTrainer(
            vocab_size=40, special_tokens=special, unk_token="<unk>", show_progress=False
        )
    pieces.train_from_iterator(SEEN, trainer)
    marks = [("<s>", 2), ("</s>", 3)]
    pieces.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=marks)
    PreTrainedTokenizerFast(
        tokenizer_object=pieces, pad_token="<pad>", unk_token="<unk>", model_max_length=16
    ).save_pretrained(folder)
    return Tokenizer(folder)


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece", "sentencepiece without words"])
@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("a red dog", ["a", "red", "dog"]),
        ("  a   dog ", ["a", "dog"]),
        ("🐕 naïve", ["🐕", "naïve"]),
        ("a red dog " * 10, None),
        ("", []),
    ],
)
def test_pieces_of_a_word_are_joined(
    tmp_path: Path, kind: str, caption: str, expected: list[str] | None
) -> None:
    tokenizer = subword_tokenizer(tmp_path, kind)
    spans, (tokens, lengths) = tokenizer.spans(caption), tokenizer.encode([caption])
    assert len(spans) == int(lengths[0]) == tokens.shape[1] <= 16
    assert spans[0] is spans[-1] is None
    found = [span for span in dict.fromkeys(spans) if span]
    assert all(before[1] <= after[0] for before, after in pairwise(found))
    texts = [caption[slice(*span)] for span in found]
    if expected is not None:
        assert texts == expected
    else:
        assert tokens.shape[1] == 16, "cut"
        assert texts[:-1] == caption.split()[: len(texts) - 1]
        assert caption.split()[len(texts) - 1].startswith(texts[-1])


@pytest.mark.parametrize("name", ["vse-infinity", "vse++", "scan"])
def test_pieces_and_cut_captions_add_up(tmp_path: Path, name: str) -> None:
    """WordPiece knows "run" and "##s", and reads twelve tokens."""
    encoder = tiny.bert(tmp_path)
    system = system_of(make(name, text_input=TextInput(encoder=encoder)), Tokenizer(encoder))
    caption = "Two red cats runs, the dog!"
    found = explain(system, caption)
    assert [word for word, _ in found.words] == [
        "Two",
        "red",
        "cats",
        "runs",
        ",",
        "the",
        "dog",
        "!",
    ]
    tokens, lengths = system.encode([caption])
    whole = explained(system.model, pairs()[0][:1], tokens, lengths)
    assert whole.words is not None
    pieces = whole.words[0].tolist()  # start, two, red, unknown, run, ##s ...
    assert found.words[2][1] == pytest.approx(pieces[3])
    assert found.words[3][1] == pytest.approx(pieces[4] + pieces[5])
    if name == "scan":
        assert whole.attention is not None
        assert found.attention is not None
        np.testing.assert_allclose(found.attention[3, 0], whole.attention[0, 4:6].sum(0))
    cut = explain(system, "the red dog " * 9)
    assert [word for word, _ in cut.words] == [*3 * ["the", "red", "dog"], "the"]
    for one in (found, cut):
        assert sum(value for _, value in one.words) + one.rest == pytest.approx(one.score)


def test_a_tokenizer_that_does_not_know_where_its_tokens_are_leaves_the_words_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = tiny.bert(tmp_path)
    tokenizer = Tokenizer(encoder)
    monkeypatch.setattr(type(tokenizer._tokenizer), "is_fast", False)
    system = system_of(make("scan", text_input=TextInput(encoder=encoder)), tokenizer)
    assert tokenizer.spans("two dogs") == [None] * 5
    found = explain(system, "two dogs")
    assert found.words == []
    assert found.rest == found.score


@pytest.mark.parametrize("reads", ["words", "tokens"])
def test_runs_know_the_words_of_captions(tmp_path: Path, reads: str) -> None:
    model = {"name": "vse-infinity", "width": 16, "word_width": 8}
    if reads == "tokens":
        model["text_encoder"] = str(tiny.bert(tmp_path / "bert"))
    run = train_small(tmp_path / "run", model=model, training={"epochs": 1})
    system = load_system(run.folder, torch.device("cpu"))
    found = explain(system, "Two red balls!", torch.rand(12, 128))
    expected = ["Two", "red", "balls", *("!" if reads == "tokens" else "")]
    assert [word for word, _ in found.words] == expected


def test_where_only_regions_are_known_all_of_the_score_is_the_rest() -> None:
    found = explain(with_vocabulary("vse++"), "a red dog")
    assert found.words == []
    assert found.rest == found.score
    assert found.attention is None
    assert found.regions is not None
    assert found.regions.sum() == pytest.approx(found.score)


def test_of_a_model_that_cannot_tell_there_is_no_explanation() -> None:
    assert explain_pair(with_vocabulary("vsrn"), pairs()[0][0], "a dog") is None


@pytest.mark.parametrize("training", [False, True])
def test_evaluation_is_explained_whatever_the_mode(training: bool) -> None:
    system = with_vocabulary(dropout=0.5, drop=0.5)
    expected = explain(system, "a red dog runs")
    system.model.train(training)
    found = explain(system, "a red dog runs")
    assert (found.score, found.words) == (expected.score, expected.words)
    assert system.model.training == training
    with pytest.raises(ValueError, match="expected features of shape"):
        explain_pair(system, torch.zeros(12).double(), "a red dog runs")
    assert system.model.training == training


# --- where the regions are ---------------------------------------------------------------------


def test_features_are_a_grid_where_the_caller_says_so() -> None:
    system = with_vocabulary("scan")
    image = torch.randn(6, 12).double()
    plain, grid = explain(system, "a dog", image), explain(system, "a dog", image, grid=(2, 3))
    assert plain.regions is not None
    assert grid.regions is not None
    assert plain.attention is not None
    assert grid.attention is not None
    assert (plain.regions.shape, grid.regions.shape) == ((1, 6), (2, 3))
    assert (plain.attention.shape, grid.attention.shape) == ((2, 1, 6), (2, 2, 3))
    assert np.array_equal(grid.regions.flatten(), plain.regions.flatten())
    with pytest.raises(ValueError, match="grid is 3 rows of 3, and the image has 6 regions"):
        explain_pair(system, image, "a dog", grid=(3, 3))


@pytest.mark.parametrize("network", tiny.VISION)
def test_cells_of_a_backbone_are_row_by_row(tmp_path: Path, network: str) -> None:
    """Where a quarter of the picture is painted over, the features change the most."""
    torch.manual_seed(0)
    backbone = Backbone(tiny.VISION[network](tmp_path), grid=True).eval()
    pixels = tiny.pictures(1)
    painted = pixels.clone()
    painted[:, :, :16, 16:] = 255 - painted[:, :, :16, 16:]
    with torch.no_grad():
        change = (backbone(painted) - backbone(pixels)).norm(dim=2).view(2, 2, 2, 2).mean((1, 3))
    assert change.flatten().tolist().index(change.max()) == 1, "above on the right"


def test_of_a_picture_the_grid_and_its_box_are_known(tmp_path: Path) -> None:
    vocabulary = Vocabulary.build(SEEN, min_count=1)
    image_input = ImageInput(backbone=tiny.resnet(tmp_path))
    text_input = TextInput(vocabulary_size=len(vocabulary))
    model = make("vse-infinity", image_input, text_input).float()
    system = system_of(model, vocabulary, reading=PictureReading(CentreCrop(size=32, resize=36)))
    picture = Image.fromarray(
        np.random.default_rng(0).integers(256, size=(48, 96, 3), dtype=np.uint8)
    )
    found = explain(system, "a red dog", picture)
    assert found.regions is not None
    assert found.regions.shape == (4, 4)
    assert found.box == (20 / 72, 2 / 36, 52 / 72, 34 / 36)
    assert isinstance(system.reading, PictureReading)
    same = explain(system, "a red dog", system.reading.prepare([picture])[0])
    assert same.regions is not None
    assert np.array_equal(same.regions, found.regions)
    assert same.box is None
    wide = explain(system, "a red dog", torch.randn(3, 32, 64))
    assert wide.regions is not None
    assert wide.regions.shape == (4, 8)
    odd = explain(system, "a red dog", torch.randn(3, 32, 60))
    assert odd.regions is not None
    assert odd.regions.shape == (1, 32), "eight columns of cells that are not quite square"


@pytest.mark.parametrize("size", [(400, 200), (200, 400), (300, 300)])
def test_the_box_is_what_the_crop_leaves(size: tuple[int, int]) -> None:
    crop = CentreCrop(size=56, resize=64)
    edges = [round(share * side) for share, side in zip(crop.box(size), size * 2, strict=True)]
    assert crop(_painted(size, edges, 255, 0))[:, 1:-1, 1:-1].min() == 255
    inner = [edges[0] + 20, edges[1] + 20, edges[2] - 20, edges[3] - 20]
    ring = crop(_painted(size, inner, 0, 255))
    assert (ring[:, [0, -1]] == 255).all()
    assert (ring[:, :, [0, -1]] == 255).all()


def _painted(size: tuple[int, int], box: list[int], inside: int, outside: int) -> Image.Image:
    picture = Image.new("RGB", size, (outside,) * 3)
    picture.paste((inside,) * 3, (box[0], box[1], box[2], box[3]))
    return picture


def test_a_run_of_features_does_not_read_pictures() -> None:
    with pytest.raises(ValueError, match="reads precomputed features, not pictures"):
        explain_pair(with_vocabulary(), Image.new("RGB", (8, 8)), "a dog")
