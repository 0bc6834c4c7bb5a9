"""VSE-infinity with the weights of its authors' modules."""

from __future__ import annotations

from pathlib import Path

import torch
from published.make_models import FEATURES, VOCABULARY, WIDTH, WORD
from published.make_vse_infinity import BERT, CODE, REGIONS, STATE
from published.reference import Reference, check_gradients, load, near, take_weights

import gradspace as gs
from gradspace.models import ImageInput, TextInput, pooling
from gradspace.models.encoders import Encoders
from gradspace.models.pooling import length_mask
from gradspace.models.vse_infinity import VSEInfinity

KINDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
POOL = {
    **{f"gru.{kind}_l0_reverse": f"back.{kind}_l0" for kind in KINDS},
    **{f"gru.{kind}_l0": f"there.{kind}_l0" for kind in KINDS},
    "linear.": "score.",
}
GPO = {f"gpool.{theirs}": ours for theirs, ours in POOL.items()}
GRIDS = {"image/fc.": "project."} | {f"image/{k}": f"pool_images.{v}" for k, v in GPO.items()}
MLP = {"mlp.layers.0.": "0.", "mlp.bns.0.": "1.", "mlp.layers.1.": "3."}
"""They have a second BatchNorm, mlp.bns.1, and do not use it."""
IMAGES = GRIDS | {f"image/{theirs}": f"refine.{ours}" for theirs, ours in MLP.items()}
TEXT = {f"text/{k}": f"pool_texts.{v}" for k, v in GPO.items()}
GRU = TEXT | {"text/embed.": "texts.embedding.", "text/rnn.": "texts.gru."}
BERT_TEXT = TEXT | {"text/bert.": "texts.pretrained.network.", "text/linear.": "texts.linear."}


def check_step(
    model: VSEInfinity, given: Reference, expected: Reference, names: dict[str, str]
) -> None:
    images, texts = model(given["images"], given["tokens"], given["lengths"])
    near(images, expected["images"])
    near(texts, expected["texts"])
    near(gs.RetrievalLoss("triplet")(images, texts), expected["first"])
    loss = gs.RetrievalLoss("triplet-hard")(images, texts)
    near(loss, expected["hardest"])
    torch.autograd.backward(loss)
    check_gradients(model, expected.by_our_names("gradients", names))


def infinity(texts: TextInput) -> VSEInfinity:
    """With small GPOs, and nothing dropped."""
    images = ImageInput(shape=(REGIONS, FEATURES))
    encoders = Encoders(width=WIDTH, word_width=WORD)
    model = VSEInfinity(images, texts, encoders=encoders, drop=0.0)
    model.pool_images, model.pool_texts = pooling.GPO(CODE, STATE), pooling.GPO(CODE, STATE)
    return model


def test_gpo_is_that_of_the_authors() -> None:
    reference = load("vse-infinity")
    pool = pooling.GPO()
    names = {f"pool/{theirs}": ours for theirs, ours in POOL.items()}
    take_weights(pool, reference.under("gpo").by_our_names("weights", names))
    given = reference.under("input")
    found = pool(given["images"], length_mask(given["shorter"], REGIONS))
    near(found, reference["gpo/pooled"])


def test_regions_and_a_bi_gru_are_those_of_the_authors() -> None:
    reference = load("vse-infinity")
    given, expected = reference.under("input"), reference.under("regions and gru")
    model = infinity(TextInput(vocabulary_size=VOCABULARY))
    take_weights(model, expected.by_our_names("weights", IMAGES | GRU))
    near(model.eval().embed_images(given["images"]), expected["evaluated"])
    check_step(model.train(), given, expected, IMAGES | GRU)


def test_pooling_of_fewer_regions_is_that_of_the_authors() -> None:
    reference = load("vse-infinity")
    expected = reference.under("regions and gru")
    images, lengths = reference["input/images"], reference["input/shorter"]
    model = infinity(TextInput(vocabulary_size=VOCABULARY))
    take_weights(model, expected.by_our_names("weights", IMAGES | GRU))
    assert model.refine is not None
    model.eval()
    regions = model.project(images) + model.refine(images.flatten(0, 1)).view(*images.shape[:2], -1)
    pooled = model.pool_images(regions, length_mask(lengths, REGIONS))
    near(pooled / pooled.norm(dim=1, keepdim=True), expected["shorter"])


def test_a_grid_and_bert_are_those_of_the_authors(tmp_path: Path) -> None:
    from transformers import BertConfig

    BertConfig(**BERT, architectures=["BertModel"]).save_pretrained(tmp_path)
    reference = load("vse-infinity")
    given, expected = reference.under("input"), reference.under("grid and bert")
    model = infinity(TextInput(encoder=tmp_path, pretrained=False))
    model.refine = None
    take_weights(model, expected.by_our_names("weights", GRIDS | BERT_TEXT))
    near(model.eval().embed_images(given["images"]), expected["evaluated"])
    model.train().texts.eval()
    check_step(model, given, expected, GRIDS | BERT_TEXT)
