"""Results on disk and in tables: every number against a loop, every file against its version."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from comparison.made_up import entry, random_results

from gradspace.comparison.compare import gather
from gradspace.comparison.entries import grouped, per_image
from gradspace.comparison.flips import find_flips
from gradspace.comparison.results import load_table, save_table
from gradspace.runs.numbers import RECALLS
from gradspace.runs.results import check_comparable, load_results, save_results


@pytest.mark.parametrize("folds", [1, 4])
def test_the_mean_over_images_is_the_metric(folds: int) -> None:
    results = random_results(seed=3, folds=folds)
    for recall in ("i2t R@1", "i2t R@5", "t2i R@1", "t2i R@10"):
        way, _, k = recall.partition(" R@")
        hits = [100.0 * (rank <= int(k)) for rank in results.ranks[way]]
        assert results.per_image(recall).mean() == pytest.approx(sum(hits) / len(hits))
    if folds == 1:
        assert results.per_image("rsum").mean() == pytest.approx(results.metrics["rsum"])
        assert results.metrics["i2t R@1"] == pytest.approx(results.per_image("i2t R@1").mean())
    by_loop = [0.0] * 20
    for rank, image in zip(results.ranks["t2i"], results.images["t2i"], strict=True):
        by_loop[image] += 100.0 * (rank <= 5) * 20 / len(results.ranks["t2i"])
    assert results.per_image("t2i R@5").tolist() == pytest.approx(by_loop)
    with pytest.raises(ValueError, match="median rank is not a mean over queries"):
        results.per_image("i2t median rank")


def test_files_hold_what_was_measured(tmp_path: Path) -> None:
    results = random_results(seed=1)
    save_results(tmp_path / "test.parquet", results)
    again = load_results(tmp_path / "test.parquet")
    assert again.metrics == results.metrics
    assert again.same_data == results.same_data
    for way in ("i2t", "t2i"):
        assert np.array_equal(again.ranks[way], results.ranks[way])
        assert np.array_equal(again.images[way], results.images[way])
    rows = list(entry("triplet", 0).rows())
    save_table(tmp_path / "results.parquet", rows)
    assert load_table(tmp_path / "results.parquet") == rows
    table = pyarrow.parquet.read_table(tmp_path / "results.parquet")
    assert table.num_rows == len(rows), "one row per run and metric"
    assert {"objective", "seed", "metric", "value"} <= set(table.column_names)


def test_files_of_other_versions_and_broken_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.parquet"
    save_table(path, list(entry("triplet", 0).rows()))
    table = pyarrow.parquet.read_table(path)
    told = {"gradspace": json.dumps({"version": 99})}
    pyarrow.parquet.write_table(table.replace_schema_metadata(told), path)
    with pytest.raises(ValueError, match="a file of version 99, and this gradspace reads ver"):
        load_table(path)
    pyarrow.parquet.write_table(table.replace_schema_metadata(None), path)
    with pytest.raises(ValueError, match="a file of another program"):
        load_table(path)
    with pytest.raises(ValueError, match="a file of another program"):
        gather([tmp_path], None)  # type: ignore[arg-type]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="is not a complete Parquet file"):
        load_table(path)
    with pytest.raises(ValueError, match="does not exist: expected a file of results"):
        load_results(tmp_path / "gone.parquet")


def test_a_results_file_cannot_name_runs_elsewhere(tmp_path: Path) -> None:
    rows = [replace(row, run="../../etc") for row in entry("triplet", 0).rows()]
    save_table(tmp_path / "results.parquet", rows)
    with pytest.raises(ValueError, match="names a run outside of its folder"):
        gather([tmp_path], None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="does not exist: expected a run or a comparison"):
        gather([tmp_path / "nothing"], None)  # type: ignore[arg-type]


def test_runs_of_different_test_sets_are_not_compared() -> None:
    first, other = random_results(0), random_results(1, captions="another caption")
    with pytest.raises(ValueError, match="runs from different test sets cannot be compared"):
        check_comparable([("a", first), ("b", other)])
    with pytest.raises(ValueError, match=r"20 images.*in 4 folds"):
        check_comparable([("a", first), ("b", random_results(0, folds=4))])
    entries = [entry("a", 0), replace(entry("b", 0), results=other)]
    with pytest.raises(ValueError, match=r"b, VSE.*different test sets"):
        grouped(entries)


def test_entries_are_grouped_for_the_statistics() -> None:
    entries = [entry(name, seed) for seed in (0, 1) for name in ("b", "a")]
    found = grouped(entries)
    assert list(found) == [("made-up", "VSE++")]
    values = per_image(found["made-up", "VSE++"], "rsum")
    assert list(values) == ["b", "a"]
    assert values["a"].shape == (2, 20)
    means = [e.value("rsum") for e in entries if e.objective == "a"]
    assert values["a"].mean(1).tolist() == pytest.approx(means)
    assert set(RECALLS) <= {row.metric for row in entries[0].rows()}


def test_flips_against_a_loop() -> None:
    first, second = random_results(0), random_results(1)
    for k in (1, 5):
        for way, found in find_flips(first, second, k).items():
            kinds: dict[str, list[int]] = {"both": [], "one": [], "other": [], "neither": []}
            pairs = zip(first.ranks[way], second.ranks[way], strict=True)
            for query, (a, b) in enumerate(pairs):
                kind = ("both" if b <= k else "one") if a <= k else "other" if b <= k else "neither"
                kinds[kind].append(query)
            assert found.both.tolist() == kinds["both"]
            assert found.only_first.tolist() == kinds["one"]
            assert found.only_second.tolist() == kinds["other"]
            assert found.neither.tolist() == kinds["neither"]
    with pytest.raises(ValueError, match="different test sets"):
        find_flips(first, random_results(1, num_images=24))


def test_a_number_that_was_not_measured_says_where_to_measure_it() -> None:
    """As of a run that was evaluated before there was the metric."""
    old = entry("triplet", 0, {"i2t": np.ones(2), "t2i": np.ones(10)})
    for metric, file in (("i2t mean rank", "test.parquet"), ("seconds per batch", "analysis.json")):
        with pytest.raises(ValueError, match=rf"triplet.*: delete runs/triplet/0/{file}, and it"):
            old.value(metric)
