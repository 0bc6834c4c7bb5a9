from __future__ import annotations

import json
import os
import pickle
import time
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
from data.examples import small_split

from gradspace.data import FeatureWriter
from gradspace.data.dataset import PickedFeatures, gather_features, regions_of
from gradspace.data.feature_files import FeatureFile, read_features, slice_features, write_header
from gradspace.data.resident import resident

SPLIT = small_split(num_images=20)


def save(path: Path, array: object) -> Path:
    np.save(path, array)  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize("dtype", ["float16", "float32", ">f4"])
@pytest.mark.parametrize("shape", [(9, 4), (9, 3, 4)])
def test_rows_are_those_of_the_array(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    features = FeatureFile(save(tmp_path / "f.npy", array))
    assert (len(features), features.shape) == (9, shape[1:])
    chosen = np.array([8, 0, 3, 3, 5])
    gathered = pickle.loads(pickle.dumps(features)).gather(chosen)
    assert gathered.dtype == np.float32
    assert gathered.flags.owndata
    assert np.array_equal(gathered, array[chosen].astype(np.float32))
    assert np.array_equal(features.load(7), array[7].astype(np.float32))
    picked = PickedFeatures(features, np.array([4, 4, 1]))
    assert (len(picked), picked.shape) == (3, shape[1:])
    assert np.array_equal(
        gather_features(picked, np.array([2, 0])), features.gather(np.array([1, 4]))
    )
    assert np.array_equal(picked.load(2), features.load(1))


def test_features_without_gather_are_stacked() -> None:
    assert SPLIT.features is not None
    assert gather_features(SPLIT.features, np.array([3, 1])).tolist() == [[3.0] * 3, [1.0] * 3]


def test_bad_feature_files_are_explained(tmp_path: Path) -> None:
    path = tmp_path / "f.npy"
    with pytest.raises(ValueError, match="does not exist: expected features"):
        FeatureFile(path)
    for wrong, message in [
        (np.zeros((2, 3), int), "got int64 of shape"),
        (np.zeros(4, np.float32), r"got float32 of shape \[4\]"),
        (np.zeros((2, 3), np.float32, order="F"), "is in Fortran order"),
        (np.array([{}]), "is not a complete .npy file"),
    ]:
        with pytest.raises(ValueError, match=message):
            FeatureFile(save(path, wrong))
    whole = save(path, np.zeros((2, 3), np.float32)).read_bytes()
    for keep in (0, 5, len(whole) - 1):
        path.write_bytes(whole[:keep])
        with pytest.raises(ValueError, match=r"is not a complete .npy file"):
            FeatureFile(path)
    path.write_bytes(whole)
    features = FeatureFile(path)
    with pytest.raises(IndexError, match="rows must be from 0 to 1"):
        features.load(2)
    path.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match="became shorter"):
        features.load(1)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_memory_stays_flat_for_a_file_that_does_not_fit(tmp_path: Path) -> None:
    """A sparse file of 31 GiB, as COCO's regions: 226 MB of rows are read, none is kept."""
    path = tmp_path / "large.npy"
    with open(path, "wb") as file:
        write_header(file, (113_287, 36, 2048), "float32")
        file.truncate(file.tell() + 113_287 * 36 * 2048 * 4)
    features = FeatureFile(path)
    batches = np.random.default_rng(0).permutation(len(features))[:768].reshape(-1, 64)
    before = resident_bytes()
    most = 0
    for rows in batches:
        gathered = features.gather(rows)
        most = max(most, resident_bytes())
    assert most - before < 3 * gathered.nbytes < 60e6


def test_one_file_is_cut_into_splits(tmp_path: Path) -> None:
    splits = {"train": SPLIT, "dev": replace(SPLIT, name="dev", image_names=["a", "b"])}
    rows = np.arange(22 * 3, dtype=np.float16).reshape(22, 3)
    cut = slice_features(save(tmp_path / "f.npy", rows), splits)
    assert [len(features) for features in cut.values()] == [20, 2]
    assert cut["dev"].load(1).tolist() == rows[21].tolist()
    with pytest.raises(ValueError, match=r"f.npy has 21 rows for 22 images \(20 train \+ 2 dev\)"):
        slice_features(save(tmp_path / "f.npy", rows[1:]), splits)


def test_written_features_come_back(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).random((20, 2, 3)).astype(np.float16)
    with FeatureWriter(tmp_path / "new", SPLIT, (2, 3), backbone="b") as writer:
        writer.append(rows[:7])
        assert writer.num_done == 7
    with pytest.raises(ValueError, match="features of 7 of 20 images; resume"):
        read_features(tmp_path / "new", SPLIT)
    with FeatureWriter(tmp_path / "new", SPLIT, (2, 3), backbone="b") as writer:
        assert writer.num_done == 7
        writer.append(rows[7:].astype(np.float64))
        with pytest.raises(ValueError, match="at most 0 rows of shape"):
            writer.append(rows[:1])
    assert np.array_equal(read_features(tmp_path / "new", SPLIT).gather(np.arange(20)), rows)


def test_what_does_not_fit_is_not_written(tmp_path: Path) -> None:
    with FeatureWriter(tmp_path, SPLIT, (3,), backbone="b") as writer:
        with pytest.raises(ValueError, match=r"rows of shape \[3\], got shape \[4, 2\]"):
            writer.append(np.zeros((4, 2)))
        with pytest.raises(ValueError, match="images 0 to 0 are NaN, infinite or too large"):
            writer.append(np.full((1, 3), 1e9))
        assert writer.num_done == 0
        writer.append(np.zeros((1, 3)))
    with pytest.raises(ValueError, match=r"other images or another backbone \(b, 20 images"):
        FeatureWriter(tmp_path, SPLIT, (3,), backbone="c")
    other = replace(SPLIT, image_names=[f"{name}x" for name in SPLIT.image_names])
    with pytest.raises(ValueError, match="20 images, which are not the 20 images of split 'train'"):
        read_features(tmp_path, other)
    with pytest.raises(ValueError, match=r"dev.json does not exist: expected the desc"):
        read_features(tmp_path, replace(SPLIT, name="dev"))
    record = tmp_path / "train.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "num_done": "many"}))
    with pytest.raises(ValueError, match=r"train.json is not the description of .*: num_done"):
        read_features(tmp_path, SPLIT)


LARGE = small_split(num_images=80, captions=1)


def write_slowly(folder: Path) -> None:
    with FeatureWriter(folder, LARGE, (64,), backbone="b") as writer:
        while writer.num_done < 80:
            writer.append(np.full((1, 64), writer.num_done))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_writing_goes_on_after_kills(tmp_path: Path) -> None:
    """Killed at any moment: rows that count as done are there, and the rest is written later."""
    rng = np.random.default_rng()
    done = 0
    while done < 50:
        process = get_context("fork").Process(target=write_slowly, args=[tmp_path])
        process.start()
        while not (tmp_path / "train.json").exists() or num_done(tmp_path) == done:
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.05))
        process.kill()
        process.join()
        done = num_done(tmp_path)
        on_disk = np.load(tmp_path / "train.npy", mmap_mode="r")[:done, 63]
        assert np.array_equal(on_disk, np.arange(done))
    write_slowly(tmp_path)
    rows = read_features(tmp_path, LARGE).gather(np.arange(80))
    assert np.array_equal(rows[:, 63], np.arange(80))


def num_done(folder: Path) -> int:
    return int(json.loads((folder / "train.json").read_text())["num_done"])


def test_a_file_says_what_its_regions_are(tmp_path: Path) -> None:
    """A folder of an earlier version says nothing, and was written by a backbone."""
    with FeatureWriter(tmp_path, SPLIT, (4, 3), backbone="b", size=512, whole=True) as writer:
        writer.append(np.zeros((20, 4, 3), np.float32))
    found = read_features(tmp_path, SPLIT)
    assert (found.regions, found.grid, found.whole) == ("grid", (2, 2), True)
    picked = PickedFeatures(found, np.arange(3))
    assert regions_of(picked) == regions_of(resident(picked, torch.device("cpu"))) == "grid"
    with pytest.raises(ValueError, match=r"other images .*512 pixels, whole pictures"):
        FeatureWriter(tmp_path, SPLIT, (4, 3), backbone="b")
    path = tmp_path / f"{SPLIT.name}.json"
    old = json.loads(path.read_text())
    for key in ("regions", "size", "whole"):
        del old[key]
    path.write_text(json.dumps(old))
    earlier = read_features(tmp_path, SPLIT)
    assert (earlier.regions, earlier.whole) == ("grid", False)
    boxes = tmp_path / "boxes"
    with FeatureWriter(boxes, SPLIT, (4, 3), backbone="b", regions="detector") as writer:
        writer.append(np.zeros((20, 4, 3), np.float32))
    assert read_features(boxes, SPLIT).grid is None
    foreign = FeatureFile(tmp_path / f"{SPLIT.name}.npy")
    assert foreign.regions == "detector"
