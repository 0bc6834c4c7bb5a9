"""SCAN and BFAN: encoders, scores by cross attention, and steps, also with mined negatives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from published.authors import AOQ, BFAN, ON_CPU, SCAN, WHOLE_NUMBERS, Authors, Code, shake
from published.make_models import FEATURES, LENGTHS, VOCABULARY, WIDTH, WORD, captions, features
from published.reference import Reference
from torch import Tensor, nn

REGIONS = 5
OPTIONS = {"raw_feature_norm": "clipped_l2norm"}
SCAN_SCORES: dict[str, dict[str, Any]] = {
    "text-to-image lse": {"lambda_softmax": 9.0, "agg_func": "LogSumExp", "lambda_lse": 6.0},
    "text-to-image avg": {"lambda_softmax": 9.0, "agg_func": "Mean"},
    "image-to-text lse": {"lambda_softmax": 4.0, "agg_func": "LogSumExp", "lambda_lse": 5.0},
    "image-to-text avg": {"lambda_softmax": 4.0, "agg_func": "Mean"},
}
BFAN_SCORES = {"equal": {"focal_type": "equal"}, "prob": {"focal_type": "prob"}}
ABSENT = ("torchvision", "torchvision.models")
Step = tuple[nn.Module, nn.Module]


def scan(authors: Authors) -> Reference:
    """Scores of both directions and both kinds of pooling, and a step with each."""
    reference = Reference()
    with authors.code(SCAN, mends=ON_CPU | WHOLE_NUMBERS, absent=ABSENT) as code:
        module = code.module("model")
        step = _encoders(reference, module, bi_gru={"use_bi_gru": True})
        for name, options in SCAN_SCORES.items():
            direction = {"text-to-image": "t2i", "image-to-text": "i2t"}[name.split()[0]]
            options = {**OPTIONS, "lambda_lse": 1.0, **options, "cross_attn": direction}
            given = SimpleNamespace(**options)
            scores = getattr(module, f"xattn_score_{direction}")
            loss = module.ContrastiveLoss(given, margin=0.2, max_violation=True)
            _put_step(reference, name, step, partial(scores, opt=given), loss)
    return reference


def bfan(authors: Authors) -> Reference:
    """Scores with equal and with probable confidence, a step of each, and a step of AOQ."""
    reference = Reference()
    with authors.code(BFAN, mends=ON_CPU | WHOLE_NUMBERS, absent=ABSENT) as code:
        module = code.module("model")
        step = _encoders(reference, module, bi_gru={})
        for name, options in BFAN_SCORES.items():
            given = SimpleNamespace(lambda_softmax=20.0, **options)
            loss = module.ContrastiveLoss(given, margin=0.2, max_violation=True)
            _put_step(reference, name, step, partial(module.xattn_score, opt=given), loss)
    with authors.code(AOQ, mends=ON_CPU | WHOLE_NUMBERS, absent=ABSENT) as code:
        _put_second_round(reference, code)
    return reference


def _encoders(reference: Reference, module: Any, bi_gru: dict[str, bool]) -> Step:
    reference.put(
        "input",
        images=features(30, REGIONS),
        tokens=captions(31),
        lengths=torch.tensor(LENGTHS),
    )
    image = module.EncoderImagePrecomp(FEATURES, WIDTH)
    text = module.EncoderText(VOCABULARY, WORD, WIDTH, 1, **bi_gru)
    for name, network, seed in (("image", image, 32), ("text", text, 33)):
        shake(network, seed)
        reference.put_weights(name, network)
    return image, text


def _put_step(
    reference: Reference,
    name: str,
    step: Step,
    scores: Callable[..., Tensor],
    loss: Callable[..., Tensor],
) -> None:
    """Scores of all pairs, the loss of the pairs in their places, and its gradients."""
    image, text = step
    given = reference.under("input")
    regions = image(given["images"])
    words, lengths = text(given["tokens"], LENGTHS)
    lengths = [int(length) for length in lengths]
    value = loss(regions, words, lengths)
    reference.put(name, scores=scores(regions, words, lengths), loss=value)
    torch.autograd.backward(value)
    for side, network in (("image", image), ("text", text)):
        reference.put_gradients(f"{name}/{side}", network)
        network.zero_grad()


def _put_second_round(reference: Reference, code: Code) -> None:
    """AOQ's loss of BFAN, from regions and words that need no encoder."""
    module = code.module("BFAN.modelAOQ")
    given = SimpleNamespace(lambda_softmax=20.0, focal_type="equal")
    generator = torch.Generator().manual_seed(34)

    def parts(count: int) -> Tensor:
        values = torch.randn(len(LENGTHS), count, WIDTH, generator=generator)
        return (0.4 + values).requires_grad_()

    sides = {
        "images": parts(REGIONS),
        "texts": parts(max(LENGTHS)),
        "mined_images": parts(REGIONS),
        "mined_texts": parts(max(LENGTHS)),
        "images_of_texts": parts(REGIONS),
        "texts_of_images": parts(max(LENGTHS)),
    }
    arguments: list[Any] = []
    for side, values in sides.items():
        unit = torch.nn.functional.normalize(values, dim=2)
        arguments += [unit] if "image" in side.partition("_of")[0] else [unit, LENGTHS]
    loss = module.ContrastiveLoss(given, max_violation=True)
    value = loss(*arguments)
    torch.autograd.backward(value)
    gradients = {f"gradient of {side}": values.grad for side, values in sides.items()}
    reference.put("aoq", loss=value, **sides)
    reference.put("aoq", **{name: g for name, g in gradients.items() if g is not None})
