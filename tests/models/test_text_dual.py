"""The dual encoder of text: what it pools, and which weights its sides share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from models import tiny

from gradspace.models import ImageInput, TextInput, build_model
from gradspace.models.encoders import TextEncoders
from gradspace.models.text_dual import TextDual

PASSAGES = ImageInput(passages=True)


def packed(tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return torch.cat([lengths[:, None], tokens], 1)


def test_an_embedding_is_the_largest_state_of_every_dimension() -> None:
    model = TextDual(
        PASSAGES, TextInput(vocabulary_size=9), encoders=TextEncoders(width=3)
    ).double()
    tokens, lengths = tiny.captions(4, 9)
    states = model.texts(tokens, lengths)
    for i, embedding in enumerate(model.embed_texts(tokens, lengths)):
        largest = states[i, : lengths[i]].amax(0)
        torch.testing.assert_close(embedding, largest / largest.norm())


@pytest.mark.parametrize("encoder", ["gru", "bert"])
@pytest.mark.parametrize("shared", [True, False])
def test_sides_share_their_weights_or_not(encoder: str, shared: bool, tmp_path: Path) -> None:
    text_input = (
        TextInput(vocabulary_size=11)
        if encoder == "gru"
        else TextInput(encoder=tiny.bert(tmp_path))
    )
    model = TextDual(PASSAGES, text_input, encoders=TextEncoders(width=4), shared=shared).eval()
    tokens, lengths = tiny.captions(4, 11)
    images, texts = model(packed(tokens, lengths), tokens, lengths)
    assert torch.equal(images, texts) == shared
    torch.autograd.backward(model.embed_images(packed(tokens, lengths)).sum())
    touched = {name.split(".")[0] for name, p in model.named_parameters() if p.grad is not None}
    assert touched == ({"texts"} if shared else {"passages"})


def test_data_and_model_have_to_fit() -> None:
    words = TextInput(vocabulary_size=9)
    with pytest.raises(
        ValueError, match=r"vse\+\+ reads images, but the data has passages: use text-dual"
    ):
        build_model("vse++", image_input=PASSAGES, text_input=words)
    with pytest.raises(
        ValueError, match=r"text-dual reads passages, but the data has images: use .*vse"
    ):
        build_model("text-dual", image_input=ImageInput(shape=(4,)), text_input=words)
    with pytest.raises(ValueError, match=r"exactly one of shape .* backbone and passages"):
        ImageInput(shape=(4,), passages=True)
