"""Encoders of the authors' code, at tiny sizes and with random weights."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from published.authors import ON_CPU, VSEPP, Authors, shake
from published.reference import Reference
from torch import Tensor, nn

FEATURES, WIDTH, WORD, VOCABULARY = 6, 8, 5, 11
LENGTHS = [7, 5, 4, 2]


def captions(seed: int) -> Tensor:
    """Tokens of a vocabulary, 0 after the last word, the longest caption first."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, VOCABULARY, (len(LENGTHS), max(LENGTHS)), generator=generator)
    return tokens.masked_fill(torch.arange(max(LENGTHS)) >= torch.tensor(LENGTHS)[:, None], 0)


def features(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(LENGTHS), *shape, FEATURES, generator=generator)


def torchvision() -> dict[str, ModuleType]:
    """Modules in the place of torchvision's, whose one network hands features through."""
    package, networks = ModuleType("torchvision"), ModuleType("torchvision.models")

    class Handed(nn.Module):
        def __init__(self, pretrained: bool) -> None:
            super().__init__()
            self.fc: nn.Module = nn.Linear(FEATURES, 1)

        def forward(self, images: Tensor) -> Any:
            return self.fc(images)

    networks.__dict__["resnet"] = Handed
    package.__dict__["models"] = networks
    return {"torchvision": package, "torchvision.models": networks}


def vse_pp(authors: Authors) -> Reference:
    """Both encoders, on pooled features of a network and on precomputed ones, and a step."""
    reference = Reference()
    images, tokens = features(0), captions(1)
    with authors.code(VSEPP, mends=ON_CPU, given=torchvision()) as code:
        module = code.module("model")
        image = module.EncoderImageFull(WIDTH, cnn_type="resnet")
        precomputed = module.EncoderImagePrecomp(FEATURES, WIDTH)
        text = module.EncoderText(VOCABULARY, WORD, WIDTH, 1)
        shake(image, 2)
        shake(text, 3)
        precomputed.load_state_dict(image.state_dict())
        reference.put("precomputed", images=precomputed(images))
        embeddings = image(images), text(tokens, LENGTHS)
        loss = module.ContrastiveLoss(margin=0.2, max_violation=True)(*embeddings)
        torch.autograd.backward(loss)
    reference.put("input", images=images, tokens=tokens, lengths=torch.tensor(LENGTHS))
    reference.put("output", images=embeddings[0], texts=embeddings[1], loss=loss)
    for name, network in (("image", image), ("text", text)):
        reference.put_weights(name, network)
        reference.put_gradients(name, network)
    return reference
