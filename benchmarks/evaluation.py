"""Suite: all retrieval metrics, both directions, at the size of COCO 5K."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import gradspace as gs
from benchmarks.case import Batch, Call, Case, Measurement, make_batch
from benchmarks.tables import Table, megabytes, seconds, time_ratio

COSINE = 0.1
"""Cosine of a text and its image, close to the best of 25,000 negatives, so that recalls vary."""
LOOP_IMAGES = 100
KS = (1, 5, 10)

TITLES = {
    "product": "one bare matrix product (the floor; no metric)",
    "ours": "gradspace report: all metrics, both ways",
    "ours, shuffled": "gradspace report, texts in random order",
    "faiss": "faiss IndexFlatIP, top 10 both ways: R@1, 5, 10 only",
    "loop": "VSE++ loops: argsort per query, R@1, 5, 10 only",
}


def cases(quick: bool) -> list[Case]:
    images, width = (200, 32) if quick else (5000, 1024)
    return [Case("evaluation", who, "report", images, 5, width) for who in TITLES]


def prepare(case: Case) -> Call:
    batch = make_batch(case, COSINE)
    match case.who:
        case "product":
            return Call(lambda: _product(batch))
        case "ours":
            return Call(lambda: _our_report(batch))
        case "ours, shuffled":
            shuffled = _shuffle_texts(batch)
            return Call(lambda: _our_report(shuffled))
        case "faiss":
            return Call(lambda: _faiss(batch))
        case "loop":
            num_images = min(LOOP_IMAGES, case.images)
            return Call(lambda: _loop(batch, case.captions, num_images), num_images / case.images)
    raise ValueError(f"nobody is called {case.who!r}")


def _product(b: Batch) -> dict[str, float]:
    scores = b.images @ b.texts.t()
    return {"last": scores[-1, -1].item()}


def _our_report(b: Batch) -> dict[str, float]:
    scores = gs.EmbeddingScores(b.images, b.texts)
    report = gs.retrieval_report(scores, gs.match_ids(b.image_ids, b.text_ids), ks=KS)
    return _numbers(report.image_to_text.recall, report.text_to_image.recall)


def _shuffle_texts(b: Batch) -> Batch:
    order = torch.randperm(len(b.texts), generator=torch.Generator().manual_seed(1))
    return Batch(b.images, b.texts[order], b.image_ids, b.text_ids[order])


def _faiss(b: Batch) -> dict[str, float]:
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())

    def one_way(queries: Tensor, ids: Tensor, candidates: Tensor, of: Tensor) -> dict[int, float]:
        index: Any = faiss.IndexFlatIP(candidates.shape[1])
        index.add(candidates.numpy())
        _, found = index.search(queries.numpy(), max(KS))
        own = (of.numpy()[found] == ids.numpy()[:, None]) & (found >= 0)
        return {k: 100 * float(own[:, :k].any(1).mean()) for k in KS}

    return _numbers(
        one_way(b.images, b.image_ids, b.texts, b.text_ids),
        one_way(b.texts, b.text_ids, b.images, b.image_ids),
    )


def _loop(b: Batch, captions: int, num_images: int) -> dict[str, float]:
    """Run the loops that image-text retrieval code has copied since VSE++, over some images."""
    images, texts = b.images.numpy(), b.texts.numpy()
    by_image, by_text = [], []
    for image in range(num_images):
        own = range(captions * image, captions * (image + 1))
        order = np.argsort(texts @ images[image])[::-1]
        by_image.append(min(_place(order, text) for text in own))
        for text in own:
            order = np.argsort(images @ texts[text])[::-1]
            by_text.append(_place(order, image))
    return _numbers(_recalls(by_image), _recalls(by_text))


def _place(order: NDArray[np.intp], item: int) -> int:
    return int(np.where(order == item)[0][0])


def _recalls(places: Sequence[int]) -> dict[int, float]:
    return {k: 100 * float(np.mean(np.array(places) < k)) for k in KS}


def _numbers(by_image: Mapping[int, float], by_text: Mapping[int, float]) -> dict[str, float]:
    return {f"image->text R@{k}": by_image[k] for k in KS} | {
        f"text->image R@{k}": by_text[k] for k in KS
    }


def check(measured: Mapping[Case, Measurement]) -> None:
    """Check that all recalls equal ours, those of the loops on the queries they cover."""
    by_who = {case.who: m.numbers for case, m in measured.items() if not m.failure}
    (ours,) = (case for case in measured if case.who == "ours")
    for who in ("ours, shuffled", "faiss"):
        _check_equal(who, by_who.get(who, {}), by_who["ours"])
    if "loop" in by_who:
        _check_equal("loop", by_who["loop"], _our_recalls_of_first(ours, LOOP_IMAGES))


def _check_equal(who: str, numbers: Mapping[str, float], ours: Mapping[str, float]) -> None:
    for name, number in numbers.items():
        if abs(number - ours[name]) > 1e-6:
            raise ValueError(f"{who} finds {name} {number}, ours {ours[name]}")


def _our_recalls_of_first(case: Case, num_images: int) -> dict[str, float]:
    b = make_batch(case, COSINE)
    num_texts = num_images * case.captions

    def first(queries: Tensor, ids: Tensor, candidates: Tensor, of: Tensor) -> dict[int, float]:
        return gs.recall(gs.EmbeddingScores(queries, candidates), gs.match_ids(ids, of), KS)

    return _numbers(
        first(b.images[:num_images], b.image_ids[:num_images], b.texts, b.text_ids),
        first(b.texts[:num_texts], b.text_ids[:num_texts], b.images, b.image_ids),
    )


def tables(measured: Mapping[Case, Measurement]) -> list[Table]:
    floor, sizes = next((m, case) for case, m in measured.items() if case.who == "product")
    title = f"Evaluation: {sizes.images:,} images x {sizes.images * sizes.captions:,} texts"
    columns = ["what", "seconds", "times the product", "extra MB"]
    rows = [
        [TITLES[case.who], seconds(m), time_ratio(m, floor), megabytes(m)]
        for case, m in measured.items()
    ]
    return [Table(title, columns, rows)]
