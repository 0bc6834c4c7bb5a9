"""VSRN with the weights of its authors' modules, and of ICR's."""

from __future__ import annotations

import pytest
import torch
from published.make_models import FEATURES, VOCABULARY, WIDTH, WORD
from published.make_vsrn import HIDDEN, REGIONS
from published.reference import Reference, check_gradients, load, near, take_weights
from torch import Tensor

import gradspace as gs
from gradspace.models import ImageInput, TextInput
from gradspace.models.captioning import CaptionDecoder
from gradspace.models.encoders import Encoders
from gradspace.models.vsrn import VSRN

BLOCK = {"theta.": "theta.", "phi.": "phi.", "g.": "g.", "W.0.": "out.", "W.1.": "norm."}
IMAGE = {
    "image/fc.": "project.",
    "image/img_rnn.": "reader.",
    "image/bn.": "norm.",
    **{
        f"image/Rs_GCN_{n + 1}.{theirs}": f"blocks.{n}.{ours}"
        for n in range(4)
        for theirs, ours in BLOCK.items()
    },
}
TEXT = {"text/embed.": "texts.embedding.", "text/rnn.": "texts.gru."}
CAPTION = {
    "caption/encoder.vid2hid.": "decoder.regions.",
    "caption/encoder.rnn.": "decoder.reader.",
    "caption/decoder.embedding.": "decoder.embedding.",
    "caption/decoder.attention.linear1.": "decoder.attend.",
    "caption/decoder.attention.linear2.": "decoder.score.",
    "caption/decoder.out.": "decoder.out.",
    **{
        f"caption/decoder.rnn.{kind}_l0": f"decoder.writer.{kind}"
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    },
}
VERSIONS = {
    "flickr30k": {"first_norm": False, "batch_norm": True},
    "coco": {"first_norm": True, "batch_norm": False},
    "icr flickr30k": {"first_norm": False, "batch_norm": True},
    "icr coco": {"first_norm": True, "batch_norm": True},
}


def images_of(reference: Reference, version: str, kind: str) -> dict[str, Tensor]:
    """Their convolutions of width 1 are linear layers here, and the last has no bias.

    A BatchNorm follows it, which takes a bias out again: in training by the mean of the batch, in
    evaluation by the mean that it has seen.
    """
    found = reference.under(version).by_our_names(kind, IMAGE)
    for name in [name for name in found if name.endswith("out.bias")]:
        bias = found.pop(name)
        mean = name.replace("out.bias", "norm.running_mean")
        if kind == "weights":
            found[mean] = found[mean] - bias
        else:
            near(bias, torch.zeros_like(bias))
    return {name: value.squeeze(2) if value.dim() == 3 else value for name, value in found.items()}


def with_their_weights(version: str, caption_decoder: bool) -> tuple[VSRN, Reference]:
    reference = load("vsrn")
    model = VSRN(
        ImageInput(shape=(REGIONS, FEATURES)),
        TextInput(vocabulary_size=VOCABULARY),
        encoders=Encoders(width=WIDTH, word_width=WORD),
        **VERSIONS[version],
    )
    weights = images_of(reference, version, "weights") | reference.by_our_names("weights", TEXT)
    if caption_decoder:
        model.decoder = CaptionDecoder(
            WIDTH, VOCABULARY, word_width=WORD, width=HIDDEN, dropout=0.0
        )
        weights |= reference.by_our_names("weights", CAPTION)
    take_weights(model, weights)
    return model, reference


@pytest.mark.parametrize("version", VERSIONS)
def test_images_are_those_of_the_authors(version: str) -> None:
    model, reference = with_their_weights(version, caption_decoder=False)
    images, expected = reference["input/images"], reference.under(version)
    near(model.eval().embed_images(images), expected["evaluated"])
    near(model.train().embed_images(images), expected["trained"])


@pytest.mark.parametrize("version", ["icr flickr30k", "icr coco"])
def test_gradients_of_images_are_those_of_icr(version: str) -> None:
    model, reference = with_their_weights(version, caption_decoder=False)
    torch.autograd.backward(model.embed_images(reference["input/images"])[:, 0].sum())
    check_gradients(model, images_of(reference, version, "gradients"))


@pytest.mark.parametrize("version", ["flickr30k", "coco"])
def test_a_step_with_the_caption_decoder_is_that_of_the_authors(version: str) -> None:
    model, reference = with_their_weights(version, caption_decoder=True)
    given, expected = reference.under("input"), reference.under(version)
    images, texts = model(given["images"], given["tokens"], given["lengths"])
    near(texts, expected["texts"])
    retrieval, captions = gs.RetrievalLoss("triplet-hard")(images, texts), model.extra_loss()
    assert captions is not None
    near(retrieval, expected["loss"])
    near(captions, expected["caption_loss"])
    torch.autograd.backward(retrieval + captions)
    gradients = expected.by_our_names("gradients", TEXT | CAPTION)
    check_gradients(model, gradients | images_of(reference, version, "gradients"))
