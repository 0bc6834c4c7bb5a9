"""Suite: exact search in a large collection, and indexing beside the bare encoder."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.nn.functional import normalize

from benchmarks.case import Call, Case, Measurement, Run
from benchmarks.tables import Table, megabytes, seconds, time_ratio
from gradspace.data.batches import image_batches
from gradspace.indexes.build import IMAGES_AT_ONCE, update_index
from gradspace.indexes.collection import photo_folder
from gradspace.indexes.contract import Item
from gradspace.indexes.index import create_index
from gradspace.indexes.local import LocalEngine
from gradspace.runs.system import load_system

K = 10
PART = 100_000
TARGETS = {"query": 1.3, "memory": 1.3, "indexing": 1.1}

TITLES = {
    "ours": "gradspace, exact, float16 on disk",
    "faiss": "faiss IndexFlatIP, float32 in memory",
    "faiss16": "faiss IndexScalarQuantizer, float16 in memory",
}
INDEXED = {
    "encoder": "the encoder alone, on pixels that are ready",
    "ours": "gradspace index: decoding, thumbnails, encoder, storing",
}


def cases(quick: bool) -> list[Case]:
    count, width = (2_000, 64) if quick else (1_000_000, 512)
    searching = [
        Case("search", who, "searching", count, queries, width)
        for queries in (1, 64)
        for who in TITLES
    ]
    opening = Case("search", "ours", "opening", count, 1, width)
    photos, side = (8, 64) if quick else (192, 224)
    indexing = [Case("search", who, "indexing", photos, 1, side) for who in INDEXED]
    return [*searching, opening, *indexing]


def prepare(case: Case) -> Call:
    if case.what == "indexing":
        return Call(_indexing(case))
    makers: dict[str, Callable[[Path, Case], Run]] = {
        "ours": _ours,
        "faiss": _faiss,
        "faiss16": _faiss16,
    }
    if case.who not in makers:
        raise ValueError(f"nobody is called {case.who!r}")
    return Call(makers[case.who](_folder(), case))


@cache
def _folder() -> Path:
    """Return a folder that is deleted when the process ends."""
    return Path(_kept.name)


_kept = tempfile.TemporaryDirectory(prefix="gradspace-benchmark-")


def _random(count: int, width: int, seed: int) -> NDArray[np.float32]:
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(count, width, generator=generator), dim=1).numpy()


def _parts(case: Case) -> list[tuple[int, NDArray[np.float16]]]:
    """Make the vectors in parts, in the precision in which they are stored."""
    starts = range(0, case.images, PART)
    return [
        (start, _random(min(PART, case.images - start), case.width, start + 1).astype(np.float16))
        for start in starts
    ]


# --- searching ----------------------------------------------------------------------------------


def _ours(folder: Path, case: Case) -> Run:
    """Make a run of our search; the first one opens the files, whose pages count as memory."""
    place = folder / f"ours-{case.images}-{case.captions}-{case.what}"
    writer = LocalEngine(place, case.width)
    for start, part in _parts(case):
        items = [Item(f"{start + row:08}.jpg", "image") for row in range(len(part))]
        writer.put(items, part)
    writer.close()
    queries = _random(case.captions, case.width, 0)
    if case.what == "opening":
        return lambda: {"items": len(LocalEngine(place, case.width))}
    engine = LocalEngine(place, case.width)
    return lambda: _sum(
        [[hit.score for hit in hits] for hits in engine.search(queries, K, "image")]
    )


def _faiss(folder: Path, case: Case) -> Run:
    import faiss

    return _faiss_run(folder / "flat", case, faiss.IndexFlatIP(case.width))


def _faiss16(folder: Path, case: Case) -> Run:
    import faiss

    kind = faiss.ScalarQuantizer.QT_fp16
    return _faiss_run(
        folder / "half",
        case,
        faiss.IndexScalarQuantizer(case.width, kind, faiss.METRIC_INNER_PRODUCT),
    )


def _faiss_run(path: Path, case: Case, index: Any) -> Run:
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    for _, part in _parts(case):
        index.train(part.astype(np.float32))
        index.add(part.astype(np.float32))
    faiss.write_index(index, str(path))
    queries = _random(case.captions, case.width, 0)
    opened: list[Any] = []

    def run() -> dict[str, float]:
        if not opened:
            opened.append(faiss.read_index(str(path)))
        return _sum(opened[0].search(queries, K)[0])

    return run


def _sum(scores: Any) -> dict[str, float]:
    return {"scores": float(np.sum(scores, dtype=np.float64))}


# --- indexing -----------------------------------------------------------------------------------


def _indexing(case: Case) -> Run:
    """Make a run that indexes JPEG photos of 500 x 375 pixels by a model with random weights."""
    folder = _folder() / f"indexing-{case.images}"
    photos, model = folder / "photos", folder / "model"
    _write_photos(photos, case.images)
    _write_model(model, case.width)
    system = load_system(model, torch.device("cpu"))
    collection = photo_folder(photos)
    if case.who == "encoder":
        pixels = list(
            image_batches(collection.split, batch_size=IMAGES_AT_ONCE, reading=system.reading)
        )

        @torch.inference_mode()
        def encode() -> dict[str, float]:
            return {"images": sum(len(system.model.embed_images(batch)) for batch in pixels)}

        return encode
    number = iter(range(1000))

    def build() -> dict[str, float]:
        index = create_index(folder / f"index-{next(number)}", model, system, collection)
        outcome = update_index(index, collection, system, num_workers=1)
        return {"images": outcome.added}

    return build


def _write_photos(folder: Path, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for number in range(count):
        colours = rng.integers(256, size=(40, 50, 3), dtype=np.uint8)
        picture = Image.fromarray(colours).resize((500, 375), Image.Resampling.BICUBIC)
        picture.save(folder / f"{number:04}.jpg", quality=90)


def _write_model(folder: Path, side: int) -> None:
    """Write a CLIP with the image tower of ViT-B/32 and a tiny text tower."""
    from tokenizers import Tokenizer, models
    from transformers import CLIPConfig, CLIPModel, PreTrainedTokenizerFast

    if folder.exists():
        return
    torch.manual_seed(0)
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    vision = {"image_size": side, "patch_size": 32, "projection_dim": 512}
    text = {**small, "num_attention_heads": 1, "vocab_size": 4, "projection_dim": 512}
    CLIPModel(CLIPConfig(text_config=text, vision_config=vision)).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({"<pad>": 0, "</s>": 1, "<unk>": 2}, unk_token="<unk>"))
    marks = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=8, **marks).save_pretrained(
        folder
    )
    pixels = {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": side},
        "crop_size": {"height": side, "width": side},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels))


# --- results ------------------------------------------------------------------------------------


def check(measured: Mapping[Case, Measurement]) -> None:
    """Check that all found the same scores."""
    for case, m in measured.items():
        if case.what != "searching" or m.failure:
            continue
        ours = next(c for c in measured if c.who == "ours" and c.captions == case.captions)
        expected, found = measured[ours].numbers["scores"], m.numbers["scores"]
        if abs(found - expected) > 1e-3 * case.captions * K:
            raise ValueError(f"{case.who} finds scores of {found} in all, ours of {expected}")


def tables(measured: Mapping[Case, Measurement]) -> list[Table]:
    searching = {case: m for case, m in measured.items() if case.what == "searching"}
    sizes = next(iter(searching))
    half = sizes.images * sizes.width * 2 / 1e6
    title = (
        f"Search: {sizes.images:,} vectors, width {sizes.width}, exact, the {K} highest; float16 "
        f"vectors are {half:,.0f} MB; targets: {TARGETS['query']} times faiss and "
        f"{TARGETS['memory']} times these"
    )
    columns = ["what", "queries", "seconds", "times faiss", "extra MB"]
    rows = []
    for case, m in searching.items():
        faiss = next(c for c in searching if c.who == "faiss" and c.captions == case.captions)
        ratio = time_ratio(m, searching[faiss])
        rows.append([TITLES[case.who], str(case.captions), seconds(m), ratio, megabytes(m)])
    for case, m in measured.items():
        if case.what == "opening":
            rows.append(["gradspace, opening the index", "", seconds(m), "", megabytes(m)])
    return [Table(title, columns, rows), _indexing_table(measured)]


def _indexing_table(measured: Mapping[Case, Measurement]) -> Table:
    by_who = {case.who: (case, m) for case, m in measured.items() if case.what == "indexing"}
    case, encoder = by_who["encoder"]
    title = (
        f"Indexing: {case.images} JPEG photos of 500 x 375 with the image tower of CLIP ViT-B/32, "
        f"{os.cpu_count()} cores; target: {TARGETS['indexing']} times the encoder"
    )
    rows = [
        [INDEXED[who], seconds(m), time_ratio(m, encoder), megabytes(m)]
        for who, (_, m) in by_who.items()
    ]
    return Table(title, ["what", "seconds", "times the encoder", "extra MB"], rows)
