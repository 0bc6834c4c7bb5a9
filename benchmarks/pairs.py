"""Suite: scores of all pairs of a batch by SCAN and BFAN, forward + backward.

It runs on one thread, and also as part of the GPU benchmarks (`gpu_cases.py`).

The loop goes over the captions, as published implementations do: a caption is copied for every
image, attends to the regions by batched products, and its attended vectors are built at full width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, leaky_relu, normalize

from benchmarks.case import Call, Case, Measurement
from benchmarks.tables import Table, megabytes, seconds, time_ratio
from gradspace.models import ImageInput, PairScorer, TextInput, build_model

SUITE = "pairs"
REGIONS, WIDTH, VOCABULARY = 36, 1024, 100
WORDS = (8, 17)
"""Range of a caption's length, including start and end marks: 12 on average."""
SETTINGS = {
    "SCAN, text to image": ("scan", {"pooling": "avg"}),
    "SCAN, image to text": ("scan", {"pooling": "avg", "direction": "image-to-text"}),
    "BFAN": ("bfan", {}),
}


def cases(quick: bool) -> list[Case]:
    images, width = (12, 16) if quick else (128, WIDTH)
    return [
        Case(SUITE, who, what, images, 1, width) for what in SETTINGS for who in ("ours", "loop")
    ]


def prepare(case: Case) -> Call:
    torch.set_num_threads(1)
    step = forward_and_backward(case, "cpu")

    def run() -> dict[str, float]:
        score, *gradients = step()
        gradient = sum(float(gradient.square().sum()) for gradient in gradients)
        return {"score": float(score), "gradient": gradient**0.5}

    return Call(run)


def forward_and_backward(case: Case, device: str) -> Callable[[], tuple[Tensor, ...]]:
    """Make a step that returns the mean score and the gradients of the sum of squared scores."""
    images, texts, lengths = _parts(case)
    leaves = [side.to(device).requires_grad_() for side in (images, texts)]
    score = _ours(case) if case.who == "ours" else _loop(case)

    def step() -> tuple[Tensor, ...]:
        regions, words = (normalize(leaf, dim=-1) for leaf in leaves)
        scores = score(regions, words, lengths)
        gradients = torch.autograd.grad(scores.square().sum(), leaves)
        return scores.detach().mean(), *gradients

    return step


def check(measured: Mapping[Case, Measurement]) -> None:
    """Check that scores and gradients of the loop equal ours."""
    for case, m in measured.items():
        ours = next(o for c, o in measured.items() if c.what == case.what and c.who == "ours")
        for name, value in m.numbers.items():
            if abs(value - ours.numbers[name]) > 1e-3 * abs(ours.numbers[name]):
                raise ValueError(
                    f"{case.what}: the {case.who} has {name} {value}, ours {ours.numbers[name]}"
                )


def tables(measured: Mapping[Case, Measurement]) -> list[Table]:
    rows = []
    for what in SETTINGS:
        ours, loop = (
            next(m for c, m in measured.items() if (c.what, c.who) == (what, who))
            for who in ("ours", "loop")
        )
        rows.append(
            [what, seconds(ours), megabytes(ours), seconds(loop), megabytes(loop)]
            + [time_ratio(loop, ours)]
        )
    images = next(iter(measured)).images
    title = f"Pair scores: {images} images of {REGIONS} regions x {images} captions, one thread"
    columns = ["model", "ours s", "ours MB", "loop s", "loop MB", "loop / ours"]
    return [Table(title, columns, rows)]


def _parts(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(case.images, REGIONS, case.width, generator=generator)
    lengths = torch.randint(*WORDS, (case.images,), generator=generator)
    texts = torch.randn(case.images, int(lengths.max()), case.width, generator=generator)
    present = torch.arange(texts.shape[1]) < lengths[:, None]
    return normalize(images, dim=-1), normalize(texts, dim=-1) * present[..., None], lengths


Score = Callable[[Tensor, Tensor, Tensor], Tensor]


def _ours(case: Case) -> Score:
    name, settings = SETTINGS[case.what]
    model = build_model(
        name,
        image_input=ImageInput(shape=(REGIONS, 8)),
        text_input=TextInput(vocabulary_size=VOCABULARY),
        width=case.width,
        **settings,
    )
    assert isinstance(model, PairScorer)
    return model.score


def _loop(case: Case) -> Score:
    def score(images: Tensor, texts: Tensor, lengths: Tensor) -> Tensor:
        columns = []
        for text, length in zip(texts, lengths.tolist(), strict=True):
            words = text[:length].repeat(len(images), 1, 1)
            if case.what == "BFAN":
                both = _relevance(words, images, 20, True), _relevance(images, words, 20, True)
                columns.append(both[0].mean(1) + both[1].mean(1))
            elif case.what == "SCAN, text to image":
                columns.append(_relevance(words, images, 9, False).mean(1))
            else:
                columns.append(_relevance(images, words, 4, False).mean(1))
        return torch.stack(columns, 1)

    return score


def _relevance(queries: Tensor, contexts: Tensor, scale: float, focal: bool) -> Tensor:
    """Compute the relevance of one caption with every image, [images, parts of a query]."""
    attention = leaky_relu(contexts @ queries.transpose(1, 2), 0.1)
    attention = normalize(attention, dim=2).transpose(1, 2)
    weights = (scale * attention).softmax(2)
    if focal:
        focus = weights * weights.shape[2] > weights.sum(2, keepdim=True)
        weights = weights * focus
        weights = weights / weights.sum(2, keepdim=True)
    return cosine_similarity(queries, weights @ contexts, dim=2)
