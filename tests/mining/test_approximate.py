"""Lists from an approximate index: nearly the exact ones, and never what belongs together."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from mining.made import named
from torch.nn.functional import normalize

from gradspace.mining import MinedLists, approximate, mine_exact, mine_with_faiss
from gradspace.mining.approximate import FaissKind
from gradspace.scores.represented import Embeddings


def clustered(num_images: int = 1200, captions: int = 3, width: int = 16) -> Embeddings:
    """Forty clusters of images; captions near their image; two images of one id."""
    generator = torch.Generator().manual_seed(0)

    def random(count: int) -> torch.Tensor:
        return normalize(torch.randn(count, width, generator=generator), dim=1)

    centres = random(40)[torch.randint(40, (num_images,), generator=generator)]
    images = normalize(centres + 0.6 * random(num_images), dim=1)
    image_ids = torch.arange(num_images)
    image_ids[1] = 0
    text_ids = torch.arange(num_images).repeat_interleave(captions)
    texts = normalize(images[text_ids] + 0.5 * random(len(text_ids)), dim=1)
    text_ids[:2] = torch.tensor([0, num_images + 5])
    return named(images, texts, image_ids, text_ids)


@pytest.fixture(scope="module")
def exact() -> MinedLists:
    return mine_exact(clustered(), top_texts=60, top_images=20)


@pytest.mark.parametrize("index", ["hnsw", "ivf", None])
def test_recall_is_high_and_as_measured(index: FaissKind | None, exact: MinedLists) -> None:
    pytest.importorskip("faiss")
    embeddings = clustered()
    found = mine_with_faiss(embeddings, top_texts=60, top_images=20, index=index)
    for name, lists, true, ids, other_ids in (
        ("recall_texts", found.texts_of_image, exact.texts_of_image, *ids_of(embeddings)),
        ("recall_images", found.images_of_text, exact.images_of_text, *ids_of(embeddings)[::-1]),
    ):
        recall = np.mean([np.isin(t, f).mean() for t, f in zip(true, lists, strict=True)])
        assert recall > 0.9
        assert found.record["method"][name] == pytest.approx(recall, abs=0.05)
        assert (other_ids[lists] != ids[:, None]).all()
        assert all(len(set(row)) == len(row) for row in lists.tolist())
    np.testing.assert_allclose(found.positive_scores, exact.positive_scores, atol=1e-3)
    assert (np.diff(found.text_scores.astype(np.float32)) <= 0).all()
    scores = (embeddings.images @ embeddings.texts.t()).numpy()
    true_scores = np.take_along_axis(scores, found.texts_of_image.astype(np.int64), 1)
    np.testing.assert_allclose(found.text_scores, true_scores, atol=1e-3)
    assert found.record["method"]["search"].startswith("faiss")


def ids_of(embeddings: Embeddings) -> tuple[np.ndarray, np.ndarray]:
    return embeddings.image_ids.numpy(), embeddings.text_ids.numpy()


def test_own_items_leave_no_list_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough is fetched: exact search is needed for nothing but the sample that recall is of."""
    pytest.importorskip("faiss")
    asked: list[int] = []
    exact = approximate._Search.exact

    def counted(search: approximate._Search, queries: torch.Tensor) -> Any:
        asked.append(len(queries))
        return exact(search, queries)

    monkeypatch.setattr(approximate._Search, "exact", counted)
    mine_with_faiss(clustered(), top_texts=60, top_images=20, index="hnsw")
    assert asked == [200, 200]


def test_lists_as_long_as_the_corpus_are_full() -> None:
    """An index that finds too little is helped out by exact search."""
    pytest.importorskip("faiss")
    embeddings = clustered(60, 2, 4)
    found = mine_with_faiss(embeddings, top_texts=117, top_images=58, index="ivf")
    exact = mine_exact(embeddings, top_texts=117, top_images=58)
    assert (np.sort(found.texts_of_image) == np.sort(exact.texts_of_image)).all()
    assert (np.sort(found.images_of_text) == np.sort(exact.images_of_text)).all()


def test_without_faiss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ValueError, match=r"needs faiss, which is not installed: .*pip install"):
        mine_with_faiss(clustered(60, 2, 4), top_texts=3, top_images=3)


def test_unknown_index() -> None:
    pytest.importorskip("faiss")
    with pytest.raises(ValueError, match="index is 'flat'; use 'hnsw' or 'ivf'"):
        mine_with_faiss(clustered(60, 2, 4), top_texts=3, top_images=3, index="flat")  # type: ignore[arg-type]
