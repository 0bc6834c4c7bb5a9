"""Losses, counts and metrics of the authors' code, on small random embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from published.authors import AOQ, GOAL, ICR, ON_CPU, VSEPP, WHOLE_NUMBERS, Authors
from published.reference import Reference
from torch import Tensor

WIDTH = 8


def sides(
    seed: int, num_images: int, texts_per_image: int = 1, *, apart: float, noise: float
) -> list[Tensor]:
    """Unit vectors of images, and of texts that are their image and some noise."""
    generator = torch.Generator().manual_seed(seed)
    images = 1 + apart * torch.randn(num_images, WIDTH, generator=generator)
    more = noise * torch.randn(num_images, texts_per_image, WIDTH, generator=generator)
    texts = (images[:, None] + more).flatten(0, 1)
    return [torch.nn.functional.normalize(side, dim=1) for side in (images, texts)]


def put_loss(
    reference: Reference, name: str, loss: Callable[..., Tensor], **embeddings: Tensor
) -> None:
    """The value of a loss and its gradient with respect to every embedding."""
    given = {side: values.clone().requires_grad_() for side, values in embeddings.items()}
    value = loss(*given.values())
    torch.autograd.backward(value)
    gradients = {f"gradient of {side}": values.grad for side, values in given.items()}
    reference.put(
        name, **embeddings, value=value, **{k: v for k, v in gradients.items() if v is not None}
    )


def icr(authors: Authors) -> Reference:
    """The four losses, their counters and mAP."""
    reference = Reference()
    pairs = sides(0, 7, apart=0.5, noise=0.5)
    fives = sides(1, 6, 5, apart=0.15, noise=0.15)
    with authors.code(ICR, mends=ON_CPU) as code:
        losses, utils = code.module("shared.losses"), code.module("shared.evaluation.utils")
        for name, loss in {
            "triplet": losses.Triplet(margin=0.2),
            "triplet-hard": losses.Triplet(margin=0.2, max_violation=True),
            "nt-xent": losses.NTXent(tau=0.1),
        }.items():
            put_loss(reference, name, loss, images=pairs[0], texts=pairs[1])
        put_loss(reference, "smooth-ap", losses.SmoothAP(), images=fives[0], texts=fives[1])
        _put_counts(reference, losses)
        scores = fives[0] @ fives[1].t()
        order = np.argsort(-scores.numpy(), axis=1)
        for k in (5, 10):
            found = [utils.average_precision(row, i, k=k) for i, row in enumerate(order)]
            reference.put("map", **{f"at {k}": torch.tensor(found, dtype=torch.float64)})
    reference.put("map", scores=scores)
    return reference


def _put_counts(reference: Reference, losses: Any) -> None:
    """What the counters say of batches in which some queries contribute and others do not."""
    pairs = sides(2, 9, apart=1.2, noise=0.7)
    fives = sides(3, 6, 5, apart=0.5, noise=0.3)

    def put(name: str, counts: Any, batch: list[Tensor]) -> None:
        reference.put(f"counts/{name}", images=batch[0], texts=batch[1])
        for key, value in counts:
            reference[f"counts/{name}/{key}"] = torch.tensor(value, dtype=torch.float64)

    for name, hardest in (("triplet", False), ("triplet-hard", True)):
        counter = losses.Triplet(margin=0.2, max_violation=hardest, count_grads=True)
        put(name, counter(*pairs), pairs)
    sharp = sides(10, 9, apart=9.0, noise=4.0)
    put("nt-xent", losses.NTXent(tau=0.1)(*sharp, count_gradients=True, threshold=0.01), sharp)
    by_image, by_text = losses.SmoothAP()(*fives, count_gradients=True)
    put("smooth-ap", (*by_image, *by_text), fives)


CELLS = [(t, p) for t in ("con", "nca", "cir") for p in ("con", "lin", "sig", "lin_ms", "sig_ms")]
PARSED = {  # two commas are missing
    r"('rs': fun_rs)\n": r"\1,\n",
    r'("loss_ti": T_ti)\n': r"\1,\n",
}


def goal(authors: Authors) -> Reference:
    """The gradients of all 15 cells, on one batch with empty relative sets and one without."""
    reference = Reference()
    batches = {
        "full": sides(5, 8, apart=0.35, noise=0.35),
        "sparse": sides(5, 4, apart=9.0, noise=9.0),
    }
    with authors.code(GOAL, mends=PARSED) as code:
        gradient = code.module("Gradient.gradient")
        gradient.ms_a, gradient.ms_b = 2, 10  # names that its functions do not define
        for batch, (images, texts) in batches.items():
            reference.put(batch, images=images, texts=texts)
            for triplet, pair in CELLS:
                gradient.fun_rs = pair.endswith("ms")
                step = gradient.TripletGrad((triplet, pair, "cos"), tau=10)
                given = [side.clone().requires_grad_() for side in (images, texts)]
                value, _ = step(*given)
                value.backward()
                found = dict(zip(("images", "texts"), (side.grad for side in given), strict=True))
                reference.put(
                    f"{batch}/{triplet}/{pair}", **{k: v for k, v in found.items() if v is not None}
                )
    return reference


VSRN_ABSENT = ("torchvision", "torchvision.models", "opts", "misc.rewards", "models")
SIDES = ("images", "texts", "mined_images", "mined_texts", "images_of_texts", "texts_of_images")


def aoq(authors: Authors) -> Reference:
    """The loss of the second round; in batches where its other terms are zero, its first steps."""
    reference = Reference()
    generator = torch.Generator().manual_seed(6)
    pool = {
        side: torch.ones(WIDTH) + torch.randn(4000, WIDTH, generator=generator) for side in SIDES
    }
    pool = {side: torch.nn.functional.normalize(values, dim=1) for side, values in pool.items()}
    triplets, pairs = _are_violated(pool)
    near = (pool["images"] * pool["mined_texts"]).sum(1) > 0.9
    with authors.code(AOQ, mends=ON_CPU, absent=VSRN_ABSENT) as code:
        loss = code.module("modelAOQ").ContrastiveLoss
        weightless = loss(
            max_violation=True, alpha=1e30, beta=1
        )  # the weight of the online terms is 1
        for name, function, rows in (
            ("online", weightless, ~triplets.any(0) & ~pairs.any(0)),
            ("triplet", weightless, triplets.all(0) & ~pairs.any(0)),
            ("quintuplet", weightless, triplets.any(0) & pairs.any(0)),
            ("adaptive", loss(max_violation=True), triplets.any(0)),
            ("negative weights", loss(max_violation=True, beta=0.5), triplets.any(0) & near),
        ):
            chosen = rows.nonzero().flatten()[:7]
            put_loss(reference, name, function, **{side: pool[side][chosen] for side in SIDES})
    return reference


def _are_violated(pool: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """[2, rows] each: where mined triplets and mined pairs score higher than the pair itself."""
    score = {
        f"{image} {text}": (pool[image] * pool[text]).sum(1)
        for image in SIDES[::2]
        for text in ("texts", "mined_texts", "texts_of_images")
    }
    own = score["images texts"]
    triplets = torch.stack([score["images mined_texts"], score["mined_images texts"]]) > own
    pairs = [score["mined_images mined_texts"], score["images_of_texts texts_of_images"]]
    return triplets, torch.stack(pairs) > own


def metrics(authors: Authors) -> Reference:
    """Ranks and recalls of VSE++'s evaluation, five texts for each image."""
    images, texts = sides(9, 12, 5, apart=1.0, noise=1.0)
    reference = Reference()
    absent = ("data", "vocab", "model")
    with authors.code(VSEPP, mends=WHOLE_NUMBERS, absent=absent) as code:
        evaluation = code.module("evaluation")
        arrays = images.repeat_interleave(5, dim=0).numpy(), texts.numpy()
        for direction, evaluate in (("i2t", evaluation.i2t), ("t2i", evaluation.t2i)):
            values, (ranks, _) = evaluate(*arrays, return_ranks=True)
            names = ("r1", "r5", "r10", "median", "mean")
            found = dict(zip(names, (torch.tensor(float(v)) for v in values), strict=True))
            reference.put(direction, ranks=torch.from_numpy(ranks), **found)
    reference.put("batch", images=images, texts=texts)
    return reference
