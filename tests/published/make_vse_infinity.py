"""VSE-infinity: GPO, images of regions and of grids, texts of a bi-GRU and of BERT."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from published.authors import BIGRU, ON_CPU, VSE_INFTY, Authors, shake
from published.make_models import FEATURES, LENGTHS, VOCABULARY, WIDTH, WORD, captions, features
from published.reference import Reference
from torch import Tensor, nn

from gradspace.models.pooling import length_mask

REGIONS, HIDDEN = 5, 8
SHORTER = [5, 3, 1, 4]
"""Number of regions of each image."""
BERT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
}
CODE, STATE = 4, 6
SMALL_GPO = {r"GPO\(32, 32\)": f"GPO({CODE}, {STATE})"}
SMALL_BERT = {r"\b768\b": str(HIDDEN)}


def transformers() -> dict[str, ModuleType]:
    """A module in the place of transformers', whose BERT is small and random."""
    from transformers import BertConfig, BertModel

    module = ModuleType("transformers")

    def from_pretrained(name: str) -> Any:
        return BertModel(BertConfig(**BERT), add_pooling_layer=False)

    module.__dict__["BertModel"] = SimpleNamespace(from_pretrained=from_pretrained)
    return {"transformers": module}


def vse_infinity(authors: Authors) -> Reference:
    """GPO, a step with regions and a bi-GRU, and one with a grid and BERT."""
    reference = Reference()
    images, tokens = features(20, REGIONS), captions(21)
    lengths, shorter = torch.tensor(LENGTHS), torch.tensor(SHORTER)
    reference.put("input", images=images, tokens=tokens, lengths=lengths, shorter=shorter)
    with authors.code(BIGRU, mends=ON_CPU | SMALL_GPO) as code:
        encoders, losses = code.module("lib.encoders"), code.module("lib.loss")
        image = encoders.get_image_encoder(FEATURES, WIDTH, precomp_enc_type="basic")
        text = encoders.get_text_encoder(VOCABULARY, WIDTH, WORD, 1)
        _put_step(reference, "regions and gru", image, text, losses.ContrastiveLoss)
        pool = code.module("lib.modules.aggr.gpo").GPO(32, 32)
        shake(pool, 24)
        reference.put("gpo", pooled=pool(images, torch.tensor(SHORTER).float())[0])
        reference.put_weights("gpo/pool", pool)
    with authors.code(
        VSE_INFTY, mends=ON_CPU | SMALL_GPO | SMALL_BERT, given=transformers()
    ) as code:
        encoders, losses = code.module("lib.encoders"), code.module("lib.loss")
        image = encoders.EncoderImageAggr(FEATURES, WIDTH, precomp_enc_type="backbone")
        text = encoders.get_text_encoder(WIDTH)
        text.eval()  # without dropout
        _put_step(reference, "grid and bert", image, text, losses.ContrastiveLoss)
    return reference


def _put_step(
    reference: Reference, name: str, image: nn.Module, text: nn.Module, contrastive: Any
) -> None:
    images, tokens = reference["input/images"], reference["input/tokens"]
    lengths, regions = torch.tensor(LENGTHS), torch.full((len(images),), float(REGIONS))
    shake(image, 22)
    shake(text, 23)
    reference.put_weights(f"{name}/image", image)
    reference.put_weights(f"{name}/text", text)
    reference.put(name, evaluated=image.eval()(images, regions))
    some = length_mask(torch.tensor(SHORTER), REGIONS)[..., None] * images
    reference.put(name, shorter=image(some, torch.tensor(SHORTER).float()))
    embeddings: tuple[Tensor, Tensor] = (image.train()(images, regions), text(tokens, lengths))
    loss = contrastive(opt=None, margin=0.2, max_violation=True)
    value = loss(*embeddings)
    loss.max_violation_off()  # as in the first epoch
    reference.put(name, images=embeddings[0], texts=embeddings[1])
    reference.put(name, hardest=value, first=loss(*embeddings))
    torch.autograd.backward(value)
    reference.put_gradients(f"{name}/image", image)
    reference.put_gradients(f"{name}/text", text)
