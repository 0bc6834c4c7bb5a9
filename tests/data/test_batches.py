from __future__ import annotations

import multiprocessing
import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from data.examples import small_split
from torch import Tensor

from gradspace.data import Batch, Split, image_batches, text_batches, training_batches
from gradspace.data.captions import EncodedCaptions
from gradspace.data.dataset import PickedFeatures
from gradspace.data.feature_files import FeatureFile
from gradspace.data.inputs import FEATURES, PictureReading, Pixels
from gradspace.data.loader import Loader
from gradspace.data.order import CaptionsPerImage
from gradspace.data.resident import resident
from gradspace.data.vocabulary import Vocabulary
from gradspace.models.prepare.pictures import CentreCrop, RandomCrop
from gradspace.scores.positives import match_ids

SPLIT = small_split(num_images=20, captions=5)
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def encode(captions: Sequence[str]) -> tuple[Tensor, Tensor]:
    """`caption K of N.jpg` becomes [K + 1, N + 1]."""
    rows = [[int(text.split()[1]) + 1, int(text.split()[3][:-4]) + 1] for text in captions]
    return torch.tensor(rows), torch.full((len(captions),), 2)


def batches(
    split: Split = SPLIT,
    captions_per_image: CaptionsPerImage = 1,
    start_batch: int = 0,
    pixels: Pixels | None = None,
    num_workers: int = 0,
    epoch: int = 0,
    rank: int = 0,
    world_size: int = 1,
) -> list[Batch]:
    loader = training_batches(
        split,
        EncodedCaptions(encode, split.captions),
        batch_size=8,
        captions_per_image=captions_per_image,
        seed=7,
        epoch=epoch,
        start_batch=start_batch,
        reading=FEATURES if pixels is None else PictureReading(pixels),
        num_workers=num_workers,
        rank=rank,
        world_size=world_size,
    )
    found = list(loader)
    assert len(found) == len(loader)
    return found


@pytest.mark.parametrize("captions_per_image", [1, 3, "all"])
@pytest.mark.parametrize("size", [1, 3, 5, 100])
def test_parts_of_a_batch_keep_images_and_captions_together(
    captions_per_image: CaptionsPerImage, size: int
) -> None:
    for batch in batches(captions_per_image=captions_per_image):
        parts = batch.in_parts(size)
        for field in fields(Batch):
            together = torch.cat([getattr(part, field.name) for part in parts])
            assert torch.equal(together, getattr(batch, field.name))
        for part in parts:
            assert set(part.image_ids.tolist()) == set(part.text_ids.tolist())
            assert len(part.text_ids) <= size or len(part.image_ids) == 1
            rows = part.image_of_text()
            expected = torch.arange(len(part.text_ids)) if rows is None else rows
            assert torch.equal(part.image_ids[expected], part.text_ids)


def test_a_range_of_images_and_captions() -> None:
    images = torch.cat(list(image_batches(SPLIT, batch_size=4, start=3, stop=13)))
    everything = torch.cat(list(image_batches(SPLIT, batch_size=7)))
    assert torch.equal(images, everything[3:13])
    loader = text_batches(SPLIT, encode, batch_size=4, start=5, stop=15)
    assert [len(tokens) for tokens, _ in loader] == [4, 4, 2]
    expected, _ = encode(SPLIT.captions[5:15])
    assert torch.equal(torch.cat([tokens for tokens, _ in loader]), expected)


def assert_same(one: Sequence[Batch], other: Sequence[Batch]) -> None:
    assert len(one) == len(other)
    for first, second in zip(one, other, strict=True):
        for field in fields(Batch):
            assert torch.equal(getattr(first, field.name), getattr(second, field.name)), field.name


@pytest.fixture
def with_images(tmp_path: Path) -> Split:
    return small_split(num_images=20, captions=5, images=tmp_path)


@pytest.mark.parametrize("captions_per_image", [1, 3, "all"])
def test_rows_belong_together(captions_per_image: CaptionsPerImage) -> None:
    for batch in batches(captions_per_image=captions_per_image):
        per_image = 5 if captions_per_image == "all" else captions_per_image
        assert batch.images.shape == (8, 3)
        assert batch.images.dtype == torch.float32
        assert batch.images[:, 0].tolist() == batch.image_ids.tolist()
        assert batch.text_ids.tolist() == (batch.captions // 5).tolist()
        assert (batch.tokens[:, 1] - 1).tolist() == batch.text_ids.tolist()
        assert (batch.tokens[:, 0] - 1).tolist() == (batch.captions % 5).tolist()
        assert len(batch.lengths) == len(batch.captions) == 8 * per_image
        assert {t.dtype for t in (batch.image_ids, batch.text_ids, batch.captions)} == {torch.int64}


def test_captions_of_one_image_are_positives_of_each_other() -> None:
    """Also where an image comes twice: then both rows belong to both captions."""
    twice = 0
    for batch in batches():
        positives = match_ids(batch.image_ids, batch.text_ids)
        row, caption = positives.pairs()
        assert torch.equal(batch.image_ids[row], batch.text_ids[caption])
        assert torch.equal(batch.image_ids, batch.text_ids)
        counts = torch.bincount(batch.image_ids)
        assert len(row) == int((counts**2).sum())
        twice += int((counts > 1).sum())
    assert twice > 0


@pytest.mark.parametrize("captions_per_image", [1, "all"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_starting_in_the_middle_gives_the_same_rest(
    with_images: Split, captions_per_image: CaptionsPerImage, num_workers: int
) -> None:
    """Features in threads, pixels in processes; crops are those of the undivided epoch."""
    for pixels in (None, RandomCrop(size=16)):
        whole = batches(with_images, captions_per_image, pixels=pixels)
        rest = batches(with_images, captions_per_image, 1, pixels, num_workers)
        assert_same(rest, whole[1:])


def test_starting_in_the_middle_loads_nothing_before(with_images: Split) -> None:
    class Counting:
        def __init__(self) -> None:
            self.loaded: list[int] = []

        def __len__(self) -> int:
            return 20

        @property
        def shape(self) -> tuple[int, ...]:
            return (1,)

        def load(self, index: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
            self.loaded.append(index)
            return np.zeros(1, np.float32)

    features = Counting()
    rest = batches(replace(SPLIT, features=features), start_batch=11)
    assert features.loaded == rest[0].image_ids.tolist()
    assert batches(start_batch=12) == []
    with pytest.raises(ValueError, match="start_batch is 13; the epoch has 12 batches"):
        batches(start_batch=13)


def test_crops_differ_between_epochs_and_captions_but_not_between_processes(
    with_images: Split,
) -> None:
    pixels = RandomCrop(size=16)
    whole = batches(with_images, pixels=pixels)
    parts = [batches(with_images, pixels=pixels, rank=rank, world_size=2) for rank in range(2)]
    for number, batch in enumerate(whole):
        together = torch.cat([part[number].images for part in parts])
        assert torch.equal(together, batch.images)
    crops = {
        (int(caption), crop.numpy().tobytes())
        for epoch in range(2)
        for batch in batches(with_images, pixels=pixels, epoch=epoch)
        for caption, crop in zip(batch.captions, batch.images, strict=True)
    }
    assert len({crop for _, crop in crops}) == 2 * 96


def test_images_and_texts_come_in_order(with_images: Split) -> None:
    images = list(
        image_batches(
            with_images, batch_size=8, reading=PictureReading(CentreCrop(size=16, resize=20))
        )
    )
    assert [len(part) for part in images] == [8, 8, 4]
    assert with_images.images is not None
    expected = CentreCrop(size=16, resize=20)(with_images.images.load(9))
    assert torch.equal(images[1][1], expected)
    features = torch.cat(list(image_batches(SPLIT, batch_size=6, start=5, num_workers=1)))
    assert features[:, 0].tolist() == list(range(5, 20))
    assert list(image_batches(SPLIT, batch_size=6, start=20)) == []
    tokens = torch.cat([tokens for tokens, _ in text_batches(SPLIT, encode, batch_size=30)])
    assert (5 * (tokens[:, 1] - 1) + tokens[:, 0] - 1).tolist() == list(range(100))


def test_features_of_a_file_are_gathered(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).random((40, 2, 3)).astype(np.float16)
    np.save(tmp_path / "f.npy", rows)
    features = PickedFeatures(FeatureFile(tmp_path / "f.npy"), np.arange(0, 40, 2))
    for batch in batches(replace(SPLIT, features=features), num_workers=2):
        assert np.array_equal(batch.images.numpy(), rows[2 * batch.image_ids.numpy()])


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_features_on_the_device_are_those_of_the_file(
    tmp_path: Path, dtype: type[np.floating]
) -> None:
    rows = np.random.default_rng(0).random((20, 2, 3)).astype(dtype)
    np.save(tmp_path / "f.npy", rows)
    kept = resident(FeatureFile(tmp_path / "f.npy"), torch.device("cpu"))
    assert kept.rows.numpy().dtype == dtype
    assert (len(kept), kept.shape) == (20, (2, 3))
    assert np.array_equal(kept.load(3), rows[3])
    for batch in batches(replace(SPLIT, features=kept)):
        assert batch.images.dtype == torch.float32
        assert np.array_equal(batch.images.numpy(), rows[batch.image_ids.numpy()])


def test_captions_are_encoded_once_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradspace.data.captions.AT_ONCE", 3)
    captions = ["a dog", "", "two dogs in the snow", "a cat", "the cat sleeps", "a", "a dog"]
    vocabulary = Vocabulary.build(captions, min_count=1)
    encoded = EncodedCaptions(vocabulary.encode_batch, captions)
    for chosen in ([0], [1, 6, 2], [4, 4], list(range(7)), []):
        tokens, lengths = encoded.gather(np.array(chosen, dtype=np.int64))
        expected = vocabulary.encode_batch([captions[index] for index in chosen])
        assert torch.equal(lengths, expected[1])
        assert torch.equal(tokens, expected[0].view(tokens.shape))


def test_loaders_can_be_sent_to_other_processes(with_images: Split) -> None:
    loader = training_batches(
        with_images,
        EncodedCaptions(encode, with_images.captions),
        batch_size=8,
        seed=7,
        epoch=0,
        reading=PictureReading(RandomCrop(size=16)),
    )
    assert_same(list(pickle.loads(pickle.dumps(loader))), list(loader))


def test_what_a_split_lacks_is_named(with_images: Split) -> None:
    with pytest.raises(ValueError, match="split 'train' has no images; leave pixels out"):
        batches(pixels=RandomCrop())
    with pytest.raises(ValueError, match="has no features, and the model reads features"):
        image_batches(replace(with_images, features=None), batch_size=8)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_broken_image_is_one_sentence_from_workers_too(
    with_images: Split, tmp_path: Path, num_workers: int
) -> None:
    (tmp_path / "13.jpg").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"^image '13.jpg' in \S* is broken: .*$") as caught:
        batches(with_images, pixels=RandomCrop(size=16), num_workers=num_workers)
    assert "\n" not in str(caught.value)


def double(number: int) -> int:
    if number == 6:
        raise ValueError("six")
    return 2 * number


@pytest.mark.slow
@pytest.mark.parametrize("in_processes", [False, True])
@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_loaders_keep_order_and_random_state(in_processes: bool, num_workers: int) -> None:
    state = torch.get_rng_state()
    loader = Loader(double, range(1, 6), num_workers, in_processes)
    assert list(loader) == list(loader) == [2, 4, 6, 8, 10]
    assert next(iter(loader)) == 2
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(ValueError, match=r"^six$"):
        list(replace(loader, plans=range(9)))


@pytest.mark.slow
def test_shared_memory_that_is_full_is_one_sentence(
    with_images: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker gives 64 MB of it; without this the main process waits for ever."""

    def full(tensor: torch.Tensor) -> None:
        raise RuntimeError("unable to allocate shared memory(shm): No space left on device (28)")

    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    with pytest.raises(ValueError, match=r"^there is no room in shared memory .*--shm-size=1g"):
        batches(with_images, pixels=RandomCrop(size=16), num_workers=1)


def test_batches_move_between_devices() -> None:
    moved = batches()[0].to("meta")
    assert {getattr(moved, field.name).device.type for field in fields(Batch)} == {"meta"}


@pytest.mark.skipif(sys.platform != "linux", reason="processes are only forked on Linux")
@pytest.mark.slow
def test_workers_are_forked_also_by_a_process_that_was_spawned() -> None:
    process = multiprocessing.get_context("spawn").Process(target=_read_by_two_workers)
    process.start()
    process.join(timeout=60)
    assert process.exitcode == 0


def _read_by_two_workers() -> None:
    """Only a forked worker has a function that cannot be pickled."""
    assert multiprocessing.get_start_method() == "spawn"
    assert list(Loader(lambda number: 2 * number, range(3), 2, in_processes=True)) == [0, 2, 4]


ENDLESS = """
import time
from gradspace.data.loader import Loader
kept = iter(Loader(bytes, range(10**6, 2 * 10**6), 1, in_processes=True))
print(len(next(kept)), flush=True)
time.sleep(100)
"""


@pytest.mark.slow
def test_workers_end_with_a_process_that_is_killed() -> None:
    """Also one that waits to hand over a batch that is larger than a pipe."""
    command = [sys.executable, "-c", ENDLESS]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "1000000\n"
    process.kill()
    process.communicate(timeout=30)  # until nobody has it open any more


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_can_be_pinned(with_images: Split, num_workers: int) -> None:
    for pixels in (None, RandomCrop(size=16)):
        loader = training_batches(
            with_images,
            EncodedCaptions(encode, with_images.captions),
            batch_size=8,
            seed=7,
            epoch=0,
            reading=FEATURES if pixels is None else PictureReading(pixels),
            num_workers=num_workers,
            pin_memory=True,
        )
        assert all(batch.images.is_pinned() and batch.tokens.is_pinned() for batch in loader)
    texts = text_batches(
        with_images, encode, batch_size=9, num_workers=num_workers, pin_memory=True
    )
    assert all(tokens.is_pinned() and lengths.is_pinned() for tokens, lengths in texts)
