"""Results of a run, query by query: test.parquet in its folder.

It has the rank of the best positive of every query, both ways; the metrics computed from them, and
the data they were measured on, are in the file's metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from numpy.typing import NDArray

from gradspace.data.dataset import digest
from gradspace.files import check_is_file, write_atomically
from gradspace.metrics import RankedFold
from gradspace.runs.evaluate import Evaluation
from gradspace.runs.numbers import DIRECTIONS, KS, RECALLS, metrics_by_text, retrieval_metrics
from gradspace.wording import counted

VERSION = 1
"""Version of the files of results; other versions are rejected."""

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RunResults:
    """Contents of a run's test.parquet."""

    split: str
    dataset: str
    """Name of the dataset, as it calls itself."""
    digest: str
    """Digest of the images and captions that were ranked."""
    folds: int
    metrics: Mapping[str, float]
    ranks: Mapping[str, Floats]
    """i2t, t2i -> rank of each query's best positive, infinite without one."""
    images: Mapping[str, Indices]
    """i2t, t2i -> the image that a query is, or was written for."""

    def per_image(self, metric: str) -> Floats:
        """Contribution [images] of every image to a recall or to rsum; the mean is the metric.

        A caption counts towards its image, as captions of one image are not independent.
        """
        if metric == "rsum":
            total: Floats = np.sum([self.per_image(recall) for recall in RECALLS], axis=0)
            return total
        way, _, k = metric.partition(" R@")
        if way not in DIRECTIONS or k not in map(str, KS):
            raise ValueError(f"{metric} is not a mean over queries: use a recall, or rsum")
        ranks, images = self.ranks[way], self.images[way]
        num_images = len(self.ranks["i2t"])
        hits = np.bincount(images, ranks <= int(k), minlength=num_images).astype(np.float64)
        return hits * (100 * num_images / int(np.isfinite(ranks).sum()))

    @cached_property
    def same_data(self) -> tuple[str, int, str]:
        """Key that is equal for results that may be compared."""
        return self.split, self.folds, self.digest


def results_of(evaluation: Evaluation, dataset: str) -> RunResults:
    """Make results from an evaluation on a split of `dataset`."""
    split, ranked, folds = evaluation.split, evaluation.ranked, evaluation.folds
    image_of_caption = np.asarray(split.image_of_caption)
    return RunResults(
        split=split.name,
        dataset=dataset,
        digest=digest(split.image_names, split.captions),
        folds=folds,
        metrics={
            **retrieval_metrics(evaluation.report),
            **metrics_by_text(evaluation.text_report or evaluation.report),
        },
        ranks=_best_ranks(ranked, len(split.image_names), len(split.captions)),
        images={"i2t": np.arange(len(split.image_names)), "t2i": image_of_caption},
    )


def check_comparable(results: Iterable[tuple[str, RunResults]]) -> None:
    """Raise a ValueError if two runs were evaluated on different data or in different ways."""
    (first_name, first), *others = results
    for name, other in others:
        if other.same_data != first.same_data:
            raise ValueError(
                f"{name} was evaluated on {_describe(other)} and {first_name} on "
                f"{_describe(first)}: runs from different test sets cannot be compared"
            )


def _describe(results: RunResults) -> str:
    folds = f" in {results.folds} folds" if results.folds > 1 else ""
    num_images, num_texts = (len(results.ranks[way]) for way in DIRECTIONS)
    sizes = f"{counted(num_images, 'image')}, {counted(num_texts, 'caption')}"
    return f"{results.split} of {results.dataset} ({sizes}{folds}, digest {results.digest[:6]})"


def _best_ranks(ranked: Sequence[RankedFold], num_images: int, num_texts: int) -> dict[str, Floats]:
    by_image = torch.cat([fold.by_image.best for fold in ranked])
    by_text = torch.full((num_texts,), torch.inf, dtype=torch.float64)
    for fold in ranked:
        by_text[fold.texts.cpu()] = fold.by_text.best.cpu()
    assert len(by_image) == num_images
    return {"i2t": by_image.cpu().numpy(), "t2i": by_text.numpy()}


# --- on disk ------------------------------------------------------------------------------------


def save_results(path: Path, results: RunResults) -> None:
    columns: dict[str, Any] = {
        "direction": np.repeat(list(DIRECTIONS), [len(results.ranks[way]) for way in DIRECTIONS]),
        "query": np.concatenate([np.arange(len(results.ranks[way])) for way in DIRECTIONS]),
        "image": np.concatenate([results.images[way] for way in DIRECTIONS]),
        "rank": np.concatenate([results.ranks[way] for way in DIRECTIONS]),
    }
    record = {
        key: getattr(results, key) for key in ("split", "dataset", "digest", "folds", "metrics")
    }
    write_parquet(path, pyarrow.table(columns), record)


def load_results(path: Path) -> RunResults:
    table, record = read_parquet(path, ("direction", "query", "image", "rank"))
    direction = table["direction"].to_numpy()
    columns = {name: table[name].to_numpy() for name in ("image", "rank")}
    parts = {way: direction == way for way in DIRECTIONS}
    return RunResults(
        ranks={way: columns["rank"][part] for way, part in parts.items()},
        images={way: columns["image"][part] for way, part in parts.items()},
        **record,
    )


def write_parquet(path: Path, table: Any, record: Mapping[str, Any]) -> None:
    """Write a table of pyarrow with a record in its metadata."""
    told = json.dumps({"version": VERSION, **record})
    with write_atomically(path, "wb") as file:
        pyarrow.parquet.write_table(table.replace_schema_metadata({"gradspace": told}), file)


def read_parquet(path: Path, columns: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """Read a table and its record; a ValueError if it is not one of ours."""
    check_is_file(path, "a file of results")
    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(
            f"{path} is not a complete Parquet file: delete it, and it will be made again from the "
            f"runs ({error})"
        ) from error
    told = (table.schema.metadata or {}).get(b"gradspace")
    record = json.loads(told) if told else {}
    version = record.pop("version", None)
    if version != VERSION or not set(columns) <= set(table.column_names):
        found = f"version {version}" if version is not None else "another program"
        raise ValueError(
            f"{path} is a file of {found}, and this gradspace reads version {VERSION} of its "
            "results: delete it, and it will be made again from the runs"
        )
    return table, record
