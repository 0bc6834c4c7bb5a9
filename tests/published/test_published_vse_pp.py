"""VSE++ with the weights of its authors' modules."""

from __future__ import annotations

from published.make_models import FEATURES, VOCABULARY, WIDTH, WORD
from published.reference import Reference, check_gradients, load, near, take_weights

import gradspace as gs
from gradspace.models import ImageInput, TextInput
from gradspace.models.encoders import Encoders
from gradspace.models.vse_pp import VSEPlusPlus

NAMES = {"image/fc.": "project.", "text/embed.": "texts.embedding.", "text/rnn.": "texts.gru."}


def with_their_weights() -> tuple[VSEPlusPlus, Reference]:
    reference = load("vse-pp")
    images, texts = ImageInput(shape=(FEATURES,)), TextInput(vocabulary_size=VOCABULARY)
    model = VSEPlusPlus(images, texts, encoders=Encoders(width=WIDTH, word_width=WORD))
    take_weights(model, reference.by_our_names("weights", NAMES))
    return model, reference


def test_embeddings_and_a_step_are_those_of_vsepp() -> None:
    model, reference = with_their_weights()
    given, expected = reference.under("input"), reference.under("output")
    images, texts = model(given["images"], given["tokens"], given["lengths"])
    near(images, expected["images"])
    near(texts, expected["texts"])
    loss = gs.RetrievalLoss("triplet-hard")(images, texts)
    loss.backward()
    near(loss, expected["loss"])
    check_gradients(model, reference.by_our_names("gradients", NAMES))


def test_precomputed_features_are_made_unit_vectors_too() -> None:
    """Their code takes it that precomputed features are, and has other outputs for any others."""
    model, reference = with_their_weights()
    features, theirs = reference["input/images"], reference["precomputed/images"]
    assert (model.embed_images(features) - theirs).abs().amax() > 0.1
    projected = model.project(features)
    near(projected / projected.norm(dim=1, keepdim=True), theirs)
