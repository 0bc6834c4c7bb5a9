"""Suite: pictures per second of each reader with two workers, beside the bare library."""

from __future__ import annotations

import atexit
import io
import os
import resource
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.case import Call, Case, Measurement
from benchmarks.tables import Table, megabytes, ratio, seconds, three_digits, time_ratio
from gradspace.data.batches import training_batches
from gradspace.data.cache import cache_folder
from gradspace.data.captions import EncodedCaptions
from gradspace.data.inputs import PictureReading
from gradspace.data.open import open_dataset
from gradspace.data.shards.stream import stream_batches

WORKERS = 2
BATCH = 32
SHARDS = 8
TARGET = 1.1
"""Times the seconds of the bare library."""

LONG = "memory"
LONG_PICTURES = 5_120
"""Number of pictures of 4 MiB in a stream of 20 GiB."""
PER_SHARD = 8

TITLES = {
    ("WebDataset", "bare"): "webdataset alone, shuffled in a buffer",
    ("WebDataset", "stream"): "gradspace, streamed",
    ("WebDataset", "first"): "gradspace, streamed, shards never seen before",
    ("WebDataset", "ours"): "gradspace, opened as a whole",
    ("Hugging Face", "bare"): "datasets alone, load_from_disk, shuffled",
    ("Hugging Face", "ours"): "gradspace, the same folder",
    ("Hugging Face", "stream"): "gradspace, the folder streamed, copying included",
    ("Parquet", "bare"): "datasets alone, load_dataset, shuffled",
    ("Parquet", "ours"): "gradspace, the same file",
    ("Parquet", "stream"): "gradspace, the file streamed, copying included",
}


def cases(quick: bool) -> list[Case]:
    images, side = (64, 32) if quick else (1_000, 500)
    many, large = (8 * BATCH, 100) if quick else (LONG_PICTURES, 1180)
    bounded = Case("readers", "stream", LONG, many, 1, large)
    return [*(Case("readers", who, what, images, 1, side) for what, who in TITLES), bounded]


def prepare(case: Case) -> Call:
    """The picture files are equal for all: a JPEG of noise with large grains, a caption each."""
    if case.what == LONG:
        return Call(_long(case))
    images = max(case.images, WORKERS * BATCH)  # fewer have no batch for each worker
    work = _folder(images, case.width)
    made: dict[tuple[str, str], Callable[[], Iterable[Any]]] = {
        ("WebDataset", "bare"): partial(_bare_shards, work),
        ("WebDataset", "stream"): partial(_stream, work / "shards", images),
        ("WebDataset", "first"): partial(_stream, work / "shards", images, anew=True),
        ("WebDataset", "ours"): partial(_whole, work / "shards"),
        ("Hugging Face", "bare"): partial(_bare_rows, work / "saved"),
        ("Hugging Face", "ours"): partial(_whole, work / "saved"),
        ("Hugging Face", "stream"): partial(_stream, work / "saved", images, anew=True),
        ("Parquet", "bare"): partial(_bare_rows, work / "train.parquet"),
        ("Parquet", "ours"): partial(_whole, work / "train.parquet"),
        ("Parquet", "stream"): partial(_stream, work / "train.parquet", images, anew=True),
    }
    batches = made[case.what, case.who]
    return Call(lambda: _read(batches))


def _read(batches: Callable[[], Iterable[Any]]) -> dict[str, float]:
    """Count the pictures, and the CPU seconds of this process and its workers."""
    start = _cpu_seconds()
    pictures = sum(len(pixels) for pixels in batches())
    return {"pictures": float(pictures), "cpu": _cpu_seconds() - start}


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def pixels(image: Image.Image, rng: np.random.Generator | None = None) -> Tensor:
    """Resize a picture to what a backbone reads: 224 pixels a side."""
    return torch.from_numpy(np.array(image.resize((224, 224)))).permute(2, 0, 1)


def encode(captions: Sequence[str]) -> tuple[Tensor, Tensor]:
    lengths = torch.ones(len(captions), dtype=torch.long)
    return torch.zeros(len(captions), 1, dtype=torch.long), lengths


# --- ours ---------------------------------------------------------------------------------------


def _stream(source: Path, images: int, anew: bool = False) -> Iterable[Tensor]:
    if anew:
        for kept in ("shards", "copies"):
            shutil.rmtree(cache_folder() / kept, ignore_errors=True)
    dataset = open_dataset(source, stream=True, epoch_samples=images, buffer=1000, shards_at_once=4)
    assert dataset.stream is not None
    batches = stream_batches(
        dataset.stream,
        encode,
        batch_size=BATCH,
        seed=0,
        epoch=0,
        reading=PictureReading(pixels),
        num_workers=WORKERS,
    )
    return (batch.images for batch in batches)


def _whole(source: Path) -> Iterable[Tensor]:
    train = open_dataset(source).split("train")
    batches = training_batches(
        train,
        EncodedCaptions(encode, train.captions),
        batch_size=BATCH,
        seed=0,
        epoch=0,
        reading=PictureReading(pixels),
        num_workers=WORKERS,
    )
    return (batch.images for batch in batches)


# --- the libraries ------------------------------------------------------------------------------


def _bare_shards(work: Path) -> Iterable[Tensor]:
    import webdataset

    shards = sorted(map(str, (work / "shards").glob("*.tar")))
    dataset = (
        webdataset.WebDataset(shards, shardshuffle=len(shards))
        .shuffle(1000)
        .decode("pil")
        .to_tuple("jpg", "txt")
        .map_tuple(pixels, str)
        .batched(BATCH, collation_fn=_stacked, partial=False)
    )
    loader = DataLoader(dataset, batch_size=None, num_workers=WORKERS)
    return (images for images, _ in loader)


def _bare_rows(place: Path) -> Iterable[Tensor]:
    import datasets

    datasets.disable_progress_bars()
    if place.suffix == ".parquet":
        cached = str(place.parent / "datasets")
        rows = datasets.load_dataset(
            "parquet", data_files=str(place), split="train", cache_dir=cached
        )
    else:
        rows = datasets.load_from_disk(str(place))
    loader: DataLoader[Any] = DataLoader(
        rows,
        batch_size=BATCH,
        shuffle=True,
        num_workers=WORKERS,
        collate_fn=_rows_stacked,
        drop_last=True,
    )
    return (found for found, _ in loader)


def _stacked(samples: Sequence[tuple[Tensor, str]]) -> tuple[Tensor, list[str]]:
    return torch.stack([image for image, _ in samples]), [caption for _, caption in samples]


def _rows_stacked(rows: Sequence[Mapping[str, Any]]) -> tuple[Tensor, list[str]]:
    return _stacked([(pixels(row["image"].convert("RGB")), row["caption"]) for row in rows])


# --- the data -----------------------------------------------------------------------------------


@cache
def _folder(images: int, side: int) -> Path:
    """Write one set of pictures in every form."""
    work = Path(tempfile.mkdtemp(prefix="gradspace-readers-"))
    atexit.register(_remove, work, os.getpid())
    os.environ["GRADSPACE_CACHE"] = str(work / "cache")
    files = [_jpeg(seed % 50, side) for seed in range(images)]
    (work / "shards").mkdir()
    for shard in range(SHARDS):
        members = [
            (f"{number:06d}.{ending}", data)
            for number in range(shard, images, SHARDS)
            for ending, data in (("jpg", files[number]), ("txt", b"a caption"))
        ]
        _write_tar(work / "shards" / f"train-{shard:03d}.tar", members)
    import datasets

    datasets.disable_progress_bars()
    features = datasets.Features({"image": datasets.Image(), "caption": datasets.Value("string")})
    rows = [{"bytes": data, "path": None} for data in files]
    columns = {"image": rows, "caption": ["a caption"] * images}
    made = datasets.Dataset.from_dict(columns, features)
    made.save_to_disk(str(work / "saved"))
    made.to_parquet(str(work / "train.parquet"))
    return work


def _write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def _jpeg(seed: int, side: int) -> bytes:
    rng = np.random.default_rng(seed)
    grains = rng.integers(0, 256, (side // 8, side // 8, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(grains).resize((side, side), Image.Resampling.BICUBIC).save(file, "JPEG")
    return file.getvalue()


def _remove(work: Path, owner: int) -> None:
    if os.getpid() == owner:  # and not a worker that was copied from it
        shutil.rmtree(work, ignore_errors=True)


# --- what came out ------------------------------------------------------------------------------


def _long(case: Case) -> Callable[[], dict[str, float]]:
    """A stream much larger than what is on disk: every shard is another name of one file."""
    images = max(case.images, 8 * BATCH)
    work = Path(tempfile.mkdtemp(prefix="gradspace-readers-"))
    atexit.register(_remove, work, os.getpid())
    os.environ["GRADSPACE_CACHE"] = str(work / "cache")
    file = io.BytesIO()
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (case.width, case.width, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file, "PNG", compress_level=0)
    members = [
        (f"{n}.{kind}", data)
        for n in range(PER_SHARD)
        for kind, data in (("png", file.getvalue()), ("txt", b"a caption"))
    ]
    (work / "shards").mkdir()
    _write_tar(work / "shards" / "train-0000.tar", members)
    for shard in range(1, images // PER_SHARD):
        os.link(work / "shards" / "train-0000.tar", work / "shards" / f"train-{shard:04d}.tar")
    return lambda: _memory_along(work, images)


def _memory_along(work: Path, images: int) -> dict[str, float]:
    """The most megabytes of this process and its workers, in each quarter of the stream."""
    seen, most = 0, [0.0, 0.0, 0.0, 0.0]
    for pixels in _stream(work / "shards", images):
        quarter = 4 * seen // images
        most[quarter] = max(most[quarter], _own_megabytes())
        seen += len(pixels)
    size = (work / "shards" / "train-0000.tar").stat().st_size * (images // PER_SHARD)
    quarters = {f"quarter {number + 1}": value for number, value in enumerate(most)}
    return {"pictures": seen, "read": size / 2**30, **quarters}


def _own_megabytes() -> float:
    """State that each process keeps to itself, in no file."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    total = 0
    for process in ("self", *children):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Private_Dirty:"):
                total += int(line.split()[1])
    return total * 1024 / 1e6


def check(measured: Mapping[Case, Measurement]) -> None:
    """All read as many pictures, but for what webdataset's workers have left of a last batch."""
    for case, m in measured.items():
        if not m.failure:
            missing = case.images // BATCH * BATCH - m.numbers["pictures"]
            assert 0 <= missing <= (WORKERS - 1) * BATCH, (case, m.numbers)


def tables(measured: Mapping[Case, Measurement]) -> list[Table]:
    bare = {case.what: m for case, m in measured.items() if case.who == "bare"}
    long = {case: m for case, m in measured.items() if case.what == LONG}
    measured = {case: m for case, m in measured.items() if case.what != LONG}
    rows = [
        [
            f"{case.what}: {TITLES[case.what, case.who]}",
            seconds(m),
            three_digits(m.numbers["pictures"] / m.seconds) if m.seconds else "-",
            time_ratio(m, bare[case.what]),
            three_digits(_milliseconds(m) or 0.0) if m.numbers else "-",
            ratio(_milliseconds(m), _milliseconds(bare[case.what])),
            megabytes(m),
        ]
        for case, m in measured.items()
    ]
    case = next(iter(measured))
    title = (
        f"Readers: {case.images:,} JPEG pictures of {case.width} x {case.width} pixels, decoded "
        f"and scaled to 224 x 224, {WORKERS} workers"
    )
    finding = f"Each reader should take at most {TARGET} times as long as the library alone."
    columns = ["", "seconds", "pictures/s", "x bare", "CPU ms/picture", "x bare", "MB"]
    return [Table(title, columns, rows, finding), *(_long_table(m) for m in long.values())]


def _milliseconds(m: Measurement) -> float | None:
    """CPU time of a picture, which other work on the machine hardly disturbs."""
    return 1000 * m.numbers["cpu"] / m.numbers["pictures"] if m.numbers else None


def _long_table(m: Measurement) -> Table:
    quarters = [f"quarter {number}" for number in range(1, 5)]
    title = f"A stream on {WORKERS} workers: most MB that all processes have for themselves"
    row = [three_digits(m.numbers[name]) if m.numbers else "-" for name in ("read", *quarters)]
    return Table(title, ["GiB read", "seconds", *quarters], [[row[0], seconds(m), *row[1:]]])
