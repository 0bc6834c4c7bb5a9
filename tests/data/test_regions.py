"""Region features in the files that people have are converted once, and exactly."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
from data.examples import write_karpathy
from numpy.typing import NDArray
from typer.testing import CliRunner

from gradspace.cli import app
from gradspace.data.open import open_dataset, open_items
from gradspace.data.regions import tsv
from gradspace.data.regions.convert import convert_regions
from gradspace.data.regions.source import find_places

IDS = [391895, 522418, 7, 15]
NAMES = [f"COCO_val2014_{number:012d}.jpg" for number in IDS]
WIDTH = 6
Features = dict[str, NDArray[np.float32]]


def regions(boxes: Sequence[int] = (3, 3, 3, 3)) -> Features:
    """By id, in another order than that of the dataset."""
    rng = np.random.default_rng(0)
    made = {
        str(number): rng.standard_normal((count, WIDTH)).astype(np.float16).astype(np.float32)
        for number, count in zip(IDS, boxes, strict=True)
    }
    return dict(reversed(made.items()))


def text(array: NDArray[Any]) -> str:
    return b64encode(np.ascontiguousarray(array, np.float32).tobytes()).decode()


def butd_tsv(path: Path, features: Features) -> Path:
    rows = [
        "\t".join([name, "640", "480", str(len(f)), text(np.zeros((len(f), 4))), text(f)])
        for name, f in features.items()
    ]
    path.write_text("\n".join(rows) + "\n")
    return path


def lxmert_tsv(path: Path, features: Features) -> Path:
    rows = [
        "\t".join([name, *"hwabcd", str(len(f)), text(np.zeros((len(f), 4))), text(f)])
        for name, f in features.items()
    ]
    path.write_text("\n".join(rows))
    return path


def vinvl_features(path: Path, features: Features) -> Path:
    path.write_text("".join(f"{name}\t{len(f)}\t{text(f)}\n" for name, f in features.items()))
    return path


def vinvl_predictions(path: Path, features: Features) -> Path:
    """With the beginnings of the rows beside it."""
    at, starts, lines = 0, [], []
    for name, f in features.items():
        objects = [{"class": "dog", "rect": [0, 0, 1, 1], "feature": text(row)} for row in f]
        lines.append(f"{name}\t{json.dumps({'image_h': 3, 'objects': objects})}\n")
        starts.append(at)
        at += len(lines[-1])
    path.write_text("".join(lines))
    path.with_suffix(".lineidx").write_text("\n".join(map(str, starts)) + "\n")
    return path


def vinvl_whole(path: Path, features: Features) -> Path:
    rows = ({"num_boxes": len(f), "features": text(f), "boxes": ""} for f in features.values())
    lines = (f"{name}\t{json.dumps(row)}\n" for name, row in zip(features, rows, strict=True))
    path.write_text("".join(lines))
    return path


def hdf5_groups(path: Path, features: Features) -> Path:
    with h5py.File(path.with_suffix(".hdf5"), "w") as file:
        for name, f in features.items():
            file[f"{name}/features"], file[f"{name}/bboxes"] = f, np.zeros((len(f), 4))
    return path.with_suffix(".hdf5")


def hdf5_named(path: Path, features: Features) -> Path:
    with h5py.File(path.with_suffix(".h5"), "w") as file:
        for name, f in features.items():
            file[f"{name}_features"], file[f"{name}_boxes"] = f, np.zeros((len(f), 4))
    return path.with_suffix(".h5")


def hdf5_flat(path: Path, features: Features) -> Path:
    ends = np.cumsum([len(f) for f in features.values()])
    with h5py.File(path.with_suffix(".hdf5"), "w") as file:
        file["image_features"] = np.concatenate(list(features.values()))
        file["pos_boxes"] = np.stack([[0, *ends[:-1]], ends], 1)
        file["image_ids"] = [int(name) for name in features]
    return path.with_suffix(".hdf5")


def lmdb_npy(path: Path, features: Features) -> Path:
    return lmdb_of(path, features, lambda f: _saved(np.save, f))


def lmdb_npz(path: Path, features: Features) -> Path:
    return lmdb_of(path, features, lambda f: _saved(np.savez_compressed, f))


def _saved(save: Any, array: NDArray[Any]) -> bytes:
    file = BytesIO()
    save(file, array) if save is np.save else save(file, x=array, bbox=np.zeros(4))
    return file.getvalue()


def lmdb_of(path: Path, features: Features, value: Callable[[NDArray[Any]], bytes]) -> Path:
    with lmdb.open(str(path), map_size=2**24) as database, database.begin(write=True) as writing:
        writing.put(b"keys", b"of the database")
        for name, f in features.items():
            writing.put(name.encode(), value(f))
    return path


@pytest.fixture
def captions(tmp_path: Path) -> Path:
    """COCO's names in three splits; there are no pictures."""
    splits = ["train", "restval", "val", "test"]
    entries = [(n, s, ["a dog", "a cat"]) for n, s in zip(NAMES, splits, strict=True)]
    return write_karpathy(tmp_path / "dataset_coco.json", entries)


def convert(captions: Path, source: Path, out: Path, **options: Any) -> tuple[int, ...]:
    out.mkdir(exist_ok=True)
    return convert_regions(open_items(captions, None, out, options={}), source, out, **options)


def check(captions: Path, out: Path, expected: Features) -> None:
    dataset = open_dataset(captions, features=out)
    assert {name: len(split.image_names) for name, split in dataset.splits.items()} == {
        "train": 2,
        "dev": 1,
        "test": 1,
    }
    for split in dataset.splits.values():
        assert split.features is not None
        assert split.features.regions == "detector"  # type: ignore[attr-defined]
        for index, name in enumerate(split.image_names):
            number = str(int(name[-16:-4]))
            assert np.array_equal(split.features.load(index), expected[number])


@pytest.mark.parametrize(
    "write",
    [
        butd_tsv,
        lxmert_tsv,
        vinvl_features,
        vinvl_predictions,
        vinvl_whole,
        hdf5_groups,
        hdf5_named,
        hdf5_flat,
        lmdb_npy,
        lmdb_npz,
    ],
)
def test_every_form_gives_the_same(write: Any, captions: Path, tmp_path: Path) -> None:
    ending = "lmdb" if "lmdb" in write.__name__ else "tsv"
    source = write(tmp_path / f"features.{ending}", regions())
    assert convert(captions, source, tmp_path / "out") == (3, WIDTH)
    check(captions, tmp_path / "out", regions())


def test_several_files_with_different_numbers_of_boxes(captions: Path, tmp_path: Path) -> None:
    every = list(regions((5, 2, 3, 4)).items())
    butd_tsv(tmp_path / "coco.tsv.0", dict(every[:1]))
    butd_tsv(tmp_path / "coco.tsv.1", dict(every[1:]))
    source = tmp_path / "coco.tsv.*"
    with pytest.raises(ValueError, match=r"'522418' .* has 2 regions, and the first image 5: set"):
        convert(captions, source, tmp_path / "refused")
    assert convert(captions, source, tmp_path / "out", boxes=3) == (3, WIDTH)
    first = {name: np.concatenate([f, f])[:3] for name, f in every}
    check(captions, tmp_path / "out", first)


def test_files_that_do_not_say_everything(captions: Path, tmp_path: Path) -> None:
    features = regions()
    plain = lmdb_of(tmp_path / "plain.lmdb", features, lambda f: f.tobytes())
    with pytest.raises(ValueError, match="give --width"):
        convert(captions, plain, tmp_path / "out")
    convert(captions, plain, tmp_path / "out", width=WIDTH, dtype="float32")
    check(captions, tmp_path / "out", features)
    with h5py.File(tmp_path / "array.h5", "w") as file:
        file["features"] = np.stack(list(features.values()))
    with pytest.raises(ValueError, match="give --ids"):
        convert(captions, tmp_path / "array.h5", tmp_path / "by-ids")
    (tmp_path / "ids.txt").write_text("\n".join(features) + "\n")
    convert(captions, tmp_path / "array.h5", tmp_path / "by-ids", ids=tmp_path / "ids.txt")
    check(captions, tmp_path / "by-ids", features)


def test_on_the_command_line(captions: Path, tmp_path: Path) -> None:
    source = butd_tsv(tmp_path / "f.tsv", regions())
    out = tmp_path / "out"
    arguments = ["data", "convert", source, "--data", captions, "--out", out, "--boxes", 2]
    shown = CliRunner().invoke(app, list(map(str, arguments)))
    assert shown.exit_code == 0, shown.output
    assert f"features of shape [2, {WIDTH}] are in {out}" in shown.output
    check(captions, out, {name: f[:2] for name, f in regions().items()})


# --- interrupted --------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from contextlib import contextmanager
from pathlib import Path
from gradspace.cli import app
from gradspace.data.open import open_items
from gradspace.data.regions import convert

convert.AT_ONCE = 1
captions, source, out = map(Path, sys.argv[1:])

@contextmanager
def show(what):
    def tell(done, total):
        if what == "converting features" and done == 3:
            os.kill(os.getpid(), signal.SIGKILL)
    yield tell

convert.convert_regions(open_items(captions, None, out, options={}), source, out, show=show)
"""


@pytest.mark.slow
def test_killed_it_goes_on(captions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = butd_tsv(tmp_path / "f.tsv", regions()), tmp_path / "out"
    out.mkdir()
    arguments = [sys.executable, "-c", KILLED, captions, source, out]
    assert subprocess.run(list(map(str, arguments))).returncode == -9
    with pytest.raises(ValueError, match=r"test\.json"):
        open_dataset(captions, features=out)
    loaded: list[int] = []
    load = tsv.TsvRegions.load

    def counting(self: tsv.TsvRegions, place: int) -> Any:
        loaded.append(place)
        return load(self, place)

    monkeypatch.setattr(tsv.TsvRegions, "load", counting)
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(tsv, "_by_reading", pytest.fail)  # what was found is in the cache
    show: Any = lambda what: nullcontext(lambda done, total: told.append((done, total)))  # noqa: E731
    convert(captions, source, out, show=show)
    assert len(loaded) == 1 + 1, "the first, for its shape, and what was left"
    assert told == [(4, 4)]
    check(captions, out, regions())


# --- refused ------------------------------------------------------------------------------------


class Runs:
    """Unpickled, it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_is_unpickled(captions: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    pickled = lmdb_of(tmp_path / "a.lmdb", regions(), lambda f: pickle.dumps(Runs(trap)))
    with pytest.raises(ValueError, match=r"is pickled, and reading it could run any code"):
        convert(captions, pickled, tmp_path / "out")
    inside = np.array([Runs(trap)], object)
    saved = lmdb_of(tmp_path / "b.lmdb", regions(), lambda f: _saved(np.save, inside))
    with pytest.raises(ValueError, match=r"cannot be read: Object arrays cannot be loaded"):
        convert(captions, saved, tmp_path / "out")
    assert not trap.exists()


def test_hdf5_does_not_lead_into_other_files(captions: Path, tmp_path: Path) -> None:
    other = hdf5_groups(tmp_path / "other", regions())
    with h5py.File(tmp_path / "links.h5", "w") as file:
        for name in regions():
            file[f"{name}_features"] = h5py.ExternalLink(other, f"/{name}/features")
    with pytest.raises(ValueError, match="is in another file, which is not read"):
        convert(captions, tmp_path / "links.h5", tmp_path / "out")
    (tmp_path / "secret").write_bytes(b"\0" * 4 * 3 * WIDTH)
    with h5py.File(tmp_path / "external.h5", "w") as file:
        for name in regions():
            where = [(str(tmp_path / "secret"), 0, 4 * 3 * WIDTH)]
            file.create_dataset(f"{name}_features", (3, WIDTH), "f4", external=where)
    with pytest.raises(ValueError, match="is not an array that is stored in this file"):
        convert(captions, tmp_path / "external.h5", tmp_path / "out")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("7\t640\t480\t3\t\t!!!!", "row of '7' in .* cannot be read"),
        ("7\t640\t480\t4\t\tAAAA", "has 3 bytes, which is not 4 rows of float32"),
        ("7\t640\t480\tx\t\tAAAA", "row of '7' in .* cannot be read: invalid literal"),
        ("7\t{}", "row of '7' in .* cannot be read: 'features'"),
        ("7\t[]", "row of '7' in .* cannot be read"),
        ("7\t640\t480\t1\t\t" + text(np.full((1, 4), np.nan)), "have 4 numbers, others have 6"),
        ("7\t640\t480\t3\t\t" + text(np.full((3, 6), np.inf)), "are NaN or infinite"),
        ("no row", "no row of features at byte"),
    ],
)
def test_a_broken_row_is_named(line: str, sentence: str, captions: Path, tmp_path: Path) -> None:
    features = regions()
    del features["7"]
    path = butd_tsv(tmp_path / "f.tsv", features)
    with path.open("a") as file:
        file.write(line)
    with pytest.raises(ValueError, match=sentence):
        convert(captions, path, tmp_path / "out")


def test_what_does_not_fit_is_named(captions: Path, tmp_path: Path) -> None:
    features = regions()
    del features["522418"]
    source = butd_tsv(tmp_path / "f.tsv", features)
    sentence = r"has no features of 1 image of 4, the first is 'COCO_val2014_000000522418\.jpg'"
    with pytest.raises(ValueError, match=sentence):
        convert(captions, source, tmp_path / "out")
    with pytest.raises(ValueError, match=r"not in a known format: expected \.tsv"):
        convert(captions, tmp_path, tmp_path / "out")
    (tmp_path / "f.lineidx").write_text("0\n9\n")
    source.write_text(source.read_text() + " ")
    with pytest.raises(ValueError, match=r"f\.lineidx does not belong to f\.tsv: delete it"):
        convert(captions, source, tmp_path / "out")
    for name in ("x.h5", "x.lmdb"):
        (tmp_path / name).write_bytes(b"?" * 100)
        with pytest.raises(ValueError, match=r"is not a complete"):
            convert(captions, tmp_path / name, tmp_path / "out")


def test_images_are_known_by_name_or_number(tmp_path: Path) -> None:
    names = ["val/COCO_val2014_000000000007.jpg", "1000092795.jpg", "a b.png"]
    assert find_places(["a b", "1000092795", "7"], names, tmp_path) == [2, 1, 0]
    assert find_places(["a b.png", "COCO_val2014_000000000007", "x/1000092795"], names, tmp_path)
    with pytest.raises(ValueError, match=r"'a_1\.jpg' and 'b_1\.jpg' both match '1'"):
        find_places(["1", "2"], ["a_1.jpg", "b_1.jpg"], tmp_path)
    with pytest.raises(ValueError, match="features of '007' twice"):
        find_places(["7", "007"], ["7.jpg"], tmp_path)
