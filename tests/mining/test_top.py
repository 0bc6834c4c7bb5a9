"""Mined lists are those of plain loops, whatever the tiles and the processes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mining.made import assert_same, lists_by_loops, named, odd_embeddings
from several import together

from gradspace.mining import load_lists, mine_exact, save_lists
from gradspace.mining.top import Precision
from gradspace.nearest.running import RunningTop, decode_keys, encode_keys
from gradspace.processes import rank
from gradspace.scores.represented import Embeddings, load_embeddings, save_embeddings

TILES = [(512, 4096), (23, 57), (1, 1), (5, 7), (4, 57), (23, 2), (22, 56), (1, 57)]


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("lengths", [(1, 1), (3, 2), (10, 20), (40, 3), (50, 20)])
def test_lists_are_those_of_loops(tile: tuple[int, int], lengths: tuple[int, int]) -> None:
    embeddings = odd_embeddings()
    found = mine_exact(embeddings, top_texts=lengths[0], top_images=lengths[1], tile=tile)
    of_images, of_texts = lists_by_loops(embeddings, *lengths)
    assert found.texts_of_image.tolist() == of_images
    assert found.images_of_text.tolist() == of_texts
    assert found.texts_of_image.dtype == found.images_of_text.dtype == np.int32


@pytest.mark.parametrize("length", range(1, 21))
def test_lists_of_every_length(length: int) -> None:
    embeddings = odd_embeddings(seed=1)
    found = mine_exact(embeddings, top_texts=length, top_images=length, tile=(6, 11))
    of_images, of_texts = lists_by_loops(embeddings, length, length)
    assert found.texts_of_image.tolist() == of_images
    assert found.images_of_text.tolist() == of_texts


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_scores_are_those_of_float64(dtype: torch.dtype) -> None:
    made = odd_embeddings(whole=False)
    embeddings = replace(made, images=made.images.to(dtype), texts=made.texts.to(dtype))
    found = mine_exact(embeddings, top_texts=30, top_images=9, tile=(8, 16))
    scores = (embeddings.images.double() @ embeddings.texts.double().t()).numpy()
    of_images, of_texts = lists_by_loops(embeddings, 30, 9)
    by_loops = np.take_along_axis(scores, np.array(of_images), 1)
    np.testing.assert_allclose(found.text_scores, by_loops, rtol=1e-3, atol=1e-3)
    by_loops = np.take_along_axis(scores.T, np.array(of_texts), 1)
    np.testing.assert_allclose(found.image_scores, by_loops, rtol=1e-3, atol=1e-3)
    at_lists = np.take_along_axis(scores, found.texts_of_image.astype(np.int64), 1)
    np.testing.assert_allclose(found.text_scores, at_lists, rtol=1e-3, atol=1e-3)


def test_positive_scores_are_the_best_of_the_own_images() -> None:
    embeddings = odd_embeddings()
    found = mine_exact(embeddings, top_texts=3, top_images=3, tile=(4, 9))
    scores = embeddings.images @ embeddings.texts.t()
    for text, text_id in enumerate(embeddings.text_ids):
        own = scores[embeddings.image_ids == text_id, text]
        expected = float(own.max()) if len(own) else np.nan
        np.testing.assert_equal(float(found.positive_scores[text]), expected)
    assert np.isnan(found.positive_scores).any()


def test_equal_scores_are_listed_by_index() -> None:
    """All scores are 0, and some of them -0.0."""
    images = torch.tensor([[0.0, 1.0], [-0.0, -1.0]]).repeat(5, 1)
    texts = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]).repeat(8, 1)
    ids = torch.arange(10), torch.arange(100, 116)
    for tile in ((3, 4), (10, 16), (1, 1)):
        found = mine_exact(named(images, texts, *ids), top_texts=9, top_images=6, tile=tile)
        assert (found.texts_of_image == np.arange(9)).all()
        assert (found.images_of_text == np.arange(6)).all()


@given(
    image_ids=st.lists(st.integers(0, 5), min_size=1, max_size=12),
    text_ids=st.lists(st.integers(0, 7), min_size=1, max_size=20),
    height=st.integers(1, 12),
    width=st.integers(1, 20),
    data=st.data(),
)
def test_what_belongs_together_is_never_listed(
    image_ids: list[int], text_ids: list[int], height: int, width: int, data: st.DataObject
) -> None:
    fewest_texts = min(sum(t != i for t in text_ids) for i in image_ids)
    fewest_images = min(sum(i != t for i in image_ids) for t in text_ids)
    if not fewest_texts or not fewest_images:
        return
    lengths = data.draw(st.integers(1, fewest_texts)), data.draw(st.integers(1, fewest_images))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 9)))
    images = torch.randint(-2, 3, (len(image_ids), 3), generator=generator).float()
    texts = torch.randint(-2, 3, (len(text_ids), 3), generator=generator).float()
    embeddings = named(images, texts, torch.tensor(image_ids), torch.tensor(text_ids))
    found = mine_exact(
        embeddings, top_texts=lengths[0], top_images=lengths[1], tile=(height, width)
    )
    listed = np.array(text_ids)[found.texts_of_image]
    assert (listed != np.array(image_ids)[:, None]).all()
    listed = np.array(image_ids)[found.images_of_text]
    assert (listed != np.array(text_ids)[:, None]).all()
    of_images, of_texts = lists_by_loops(embeddings, *lengths)
    assert found.texts_of_image.tolist() == of_images
    assert found.images_of_text.tolist() == of_texts


@given(
    st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=30),
    st.integers(0, 2**31 - 31),
)
def test_keys_are_ordered_as_scores_then_indices(scores: list[float], start: int) -> None:
    values = torch.tensor(scores)
    indices = start + torch.arange(len(scores))
    keys = encode_keys(values, indices)
    order = keys.argsort(descending=True).tolist()
    assert order == sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    back, back_indices = decode_keys(keys)
    assert torch.equal(back, values)
    assert torch.equal(back_indices, indices)


def test_candidates_that_rise_all_compete() -> None:
    """The worst case: every tile is higher than all before it."""
    top = RunningTop(2, 5, torch.device("cpu"))
    scores = torch.arange(200.0).repeat(2, 1)
    for first in range(0, 200, 16):
        top.take(slice(0, 2), scores[:, first : first + 16], first)
    assert (
        decode_keys(top.keys.sort(descending=True).values)[1].tolist()
        == [[199, 198, 197, 196, 195]] * 2
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_lists_of_a_gpu_are_those_of_loops(precision: Precision) -> None:
    """Small whole numbers are exact in both precisions."""
    embeddings, cuda = odd_embeddings(), torch.device("cuda")
    for tile in (None, (5, 7)):
        found = mine_exact(
            embeddings, top_texts=10, top_images=8, device=cuda, precision=precision, tile=tile
        )
        of_images, of_texts = lists_by_loops(embeddings, 10, 8)
        assert found.texts_of_image.tolist() == of_images
        assert found.images_of_text.tolist() == of_texts


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_lists_of_a_gpu_are_those_of_a_cpu(precision: Precision) -> None:
    """Many equal scores, lists that fill up again and again, and tiles of odd sizes."""
    embeddings, cuda = odd_embeddings(700, 2100), torch.device("cuda")
    expected = mine_exact(embeddings, top_texts=30, top_images=9)
    for tile in (None, (128, 256), (99, 1001), (7, 2100)):
        found = mine_exact(
            embeddings, top_texts=30, top_images=9, device=cuda, precision=precision, tile=tile
        )
        assert_same(found, expected)


def test_progress_counts_images() -> None:
    seen: list[tuple[int, int]] = []
    mine_exact(
        odd_embeddings(),
        top_texts=3,
        top_images=3,
        tile=(10, 57),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(10, 23), (20, 23), (23, 23)]


def test_from_a_file_of_embeddings(tmp_path: Path) -> None:
    embeddings = odd_embeddings()
    save_embeddings(tmp_path / "embeddings.safetensors", embeddings)
    loaded = load_embeddings(tmp_path / "embeddings.safetensors")
    expected = mine_exact(embeddings, top_texts=5, top_images=5)
    assert_same(mine_exact(loaded, top_texts=5, top_images=5), expected)


# --- several processes ---------------------------------------------------------------------------


def mine_and_save(embeddings: Embeddings, folder: Path, options: dict[str, Any]) -> None:
    save_lists(folder / f"{rank()}", mine_exact(embeddings, **options))


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.slow
def test_any_number_of_processes_mines_the_same_bits(number: int, tmp_path: Path) -> None:
    """Shares are uneven, and the list of a text is longer than the share of a process."""
    embeddings = odd_embeddings(whole=False)
    for tile, top_images in (((4, 9), 5), ((6, 57), 20), ((12, 30), 3)):  # 2 blocks: one idle
        options = {"top_texts": 7, "top_images": top_images, "tile": tile}
        expected = mine_exact(embeddings, **options)  # type: ignore[arg-type]
        together(number, mine_and_save, embeddings, tmp_path, options)
        for one in range(number):
            assert_same(load_lists(tmp_path / f"{one}"), expected)


# --- memory --------------------------------------------------------------------------------------


def peak_megabytes(work: Any, result: Any) -> None:
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    work()
    result.value = (status("VmHWM") - before) / 1e6


def status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def measured_apart(work: Any) -> float:
    """The peak memory that some work needs, in a process of its own."""
    processes = get_context("forkserver")  # a copy of this one has freed memory to use again
    result = processes.Value("d", -1.0)
    process = processes.Process(target=peak_megabytes, args=(work, result))
    process.start()
    process.join()
    assert process.exitcode == 0
    return float(result.value)


@pytest.mark.slow
def test_memory_is_that_of_lists_and_a_tile() -> None:
    """The scores would take 288 MB, the lists take 2."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(6000, 8, generator=generator)
    texts = torch.randn(12000, 8, generator=generator)
    embeddings = named(images, texts, torch.arange(6000), torch.arange(12000) // 2)
    mine = partial(mine_exact, embeddings, top_texts=20, top_images=10, tile=(256, 1024))
    assert measured_apart(mine) < 60
    assert measured_apart(partial(torch.mm, images, texts.t())) > 250


# --- errors --------------------------------------------------------------------------------------


def assert_refused(message: str, embeddings: Embeddings, **options: Any) -> None:
    with pytest.raises(ValueError, match=message):
        mine_exact(embeddings, **options)


def test_lists_longer_than_the_corpus() -> None:
    ids = torch.tensor([0, 1, 2, 3]), torch.tensor([0, 0, 0, 1, 2, 9])
    few = named(torch.ones(4, 2), torch.ones(6, 2), *ids)
    expected = (
        "top_texts is 300; image 0 has only 3 captions of other images: use at most --top-texts 3"
    )
    assert_refused(expected, few)
    expected = "top_images is 60; caption 0 has only 3 other images: use at most --top-images 3"
    assert_refused(expected, few, top_texts=3)
    assert_refused("top_texts is 0; use at least 1", few, top_texts=0)
    mine_exact(few, top_texts=3, top_images=3)
    alone = named(torch.ones(2, 2), torch.ones(2, 2), torch.zeros(2), torch.zeros(2))
    assert_refused("image_ids must be a vector of integers", alone)
    alone = replace(alone, image_ids=torch.zeros(2).int(), text_ids=torch.zeros(2).int())
    assert_refused("image 0 has no captions of other images: nothing can be mined", alone)


def test_other_errors() -> None:
    good = odd_embeddings()
    lengths = {"top_texts": 3, "top_images": 3}
    assert_refused("bfloat16 products need a CUDA device", good, precision="bfloat16", **lengths)
    assert_refused("image_ids has 22 entries", replace(good, image_ids=good.image_ids[1:]))
    bad = good.texts.clone()
    bad[5] = torch.nan
    assert_refused("texts has NaN or infinite values in 1 of 57 rows", replace(good, texts=bad))
    assert_refused("precision is 'half'; use 'float32' or", good, precision="half", **lengths)
    assert_refused("tile is .0, 5.; use", good, tile=(0, 5), **lengths)
