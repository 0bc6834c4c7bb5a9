"""Small models whose scores are explained, in float64, and pairs for them."""

from __future__ import annotations

from typing import Any

import torch
from models import tiny
from torch import Tensor

from gradspace.models import ImageInput, RetrievalModel, TextInput, build_model
from gradspace.models.contract import Contributions

REGIONS, VOCABULARY = 5, 11


def make(
    name: str,
    image_input: ImageInput | None = None,
    text_input: TextInput | None = None,
    **settings: Any,
) -> RetrievalModel:
    """In evaluation mode, and with biases that are not 0."""
    torch.manual_seed(0)
    model = build_model(
        name,
        image_input=image_input or ImageInput(shape=(REGIONS, 12)),
        text_input=text_input or TextInput(vocabulary_size=VOCABULARY),
        width=8,
        **settings,
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.double().eval()


def pairs() -> tuple[Tensor, Tensor, Tensor]:
    """Six images with captions of 2 to 6 tokens, padded to 8."""
    images = torch.randn(6, REGIONS, 12, generator=torch.Generator().manual_seed(1)).double()
    tokens, lengths = tiny.captions(6, VOCABULARY)
    return images, torch.nn.functional.pad(tokens, (0, 2)), lengths


def explained(model: RetrievalModel, *given: Tensor) -> Contributions:
    with torch.no_grad():
        found = model.explain(*given)
    assert found is not None
    return found
