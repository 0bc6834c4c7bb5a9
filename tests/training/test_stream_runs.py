"""Runs on a stream of shards: real ones, killed, with other workers, with bad samples."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from data.tars import bomb, sample, write_shards, write_tar
from models import tiny
from several import together
from training.test_distributed import StopsAfter
from training.test_resume import assert_same, start, wait_until_saved

from gradspace import processes
from gradspace.data.shards import sample as sample_of_stream
from gradspace.report.compare import compare
from gradspace.runs.analysis import load_analysis
from gradspace.runs.data import open_recipe
from gradspace.runs.finish import evaluate_run
from gradspace.runs.folder import Run, create_run
from gradspace.runs.recipe import make_recipe
from gradspace.runs.system import load_system, prepare_system
from gradspace.tensor_files import load_tensors
from gradspace.training import train_run
from gradspace.training.monitor import Monitor
from gradspace.training.start import train

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def write_data(folder: Path) -> Path:
    """48 samples in 6 shards, two of them bad, and 12 for dev."""
    write_shards(folder, {f"train-{number}.tar": 8 for number in range(5)}, captions=2)
    members = [member for number in range(8) for member in sample(f"{number}", 50 + number)]
    members[4] = ("2.png", bomb())
    members[7] = ("3.txt", b"")
    write_tar(folder / "train-5.tar", members)
    write_tar(folder / "val-0.tar", [m for n in range(12) for m in sample(f"{n}", 70 + n)])
    return folder


def tables(folder: Path, **training: Any) -> dict[str, Any]:
    data = {"source": str(folder), "stream": True, "epoch_samples": 44}
    return {
        "data": {**data, "buffer": 8, "shards_at_once": 2},
        "model": {"name": "vse++", "width": 8, "word_width": 8, "backbone": str(folder / "resnet")},
        "training": {"epochs": 3, "batch_size": 4, "track_every": 5, "save_every": 0, **training},
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stream")
    os.environ.setdefault("GRADSPACE_CACHE", str(folder / "cache"))
    tiny.resnet(folder / "resnet")
    return write_data(folder)


@pytest.fixture(scope="module")
def whole(folder: Path) -> Run:
    """A run that nobody stopped: 33 steps in 3 epochs of 44 of 48 samples."""
    return train(tables(folder), out=folder / "whole")


def test_a_stream_is_trained_on(whole: Run) -> None:
    lines = list(whole.metrics())
    assert [line["epoch"] for line in lines if line["kind"] == "epoch"] == [0, 1, 2]
    named = [name for line in lines if line["kind"] == "left out" for name in line["samples"]]
    assert {name.partition(":")[0] for name in named} == {"train-5.tar/2.png", "train-5.tar/3.jpg"}
    assert 2 * 2 <= len(named) <= 2 * 3, "once a pass, and there were 2.75 of them"
    assert (whole.folder / "shards.json").exists()
    assert load_tensors(whole.last)[1]["progress"]["bookmark"][0] == 2
    assert load_system(whole.folder).encode(["caption"])[0].numel()


@pytest.mark.slow
def test_killed_again_and_again_with_other_workers(
    folder: Path, whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no cache in between: an index is made anew, and says the same."""
    run = Run(tmp_path / "run")
    create_run(run.folder, make_recipe(tables(folder)))
    recipe = run.recipe_file.read_text()
    for last, workers in ((3, 2), (17, 1)):
        text = recipe.replace("num_workers = 0", f"num_workers = {workers}")
        run.recipe_file.write_text(text)
        process = start("--resume", run.folder)
        wait_until_saved(run, last, process)
        process.kill()
        process.communicate()
    run.recipe_file.write_text(recipe)
    monkeypatch.setenv("GRADSPACE_CACHE", str(tmp_path / "another"))
    assert_same(train(resume=run.folder), whole)


def test_a_shard_that_disappears_while_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.resnet(tmp_path / "resnet")
    shards = write_shards(tmp_path, {f"train-{n}.tar": 8 for n in range(3)})
    recipe = tables(tmp_path)
    recipe["data"]["shards_at_once"] = 1
    gone = tmp_path / "gone"

    class Loses(Monitor):
        def batch_done(self, num_pairs: int, loss: float) -> None:
            gone.mkdir(exist_ok=True)
            for shard in shards.glob("*.tar"):
                shard.rename(gone / shard.name)

    monkeypatch.setattr("gradspace.training.start.Monitor", Loses)
    sentence = r"train-.\.tar cannot be read: No such file .*; put it back and resume .*--resume"
    with pytest.raises(ValueError, match=sentence):
        train(recipe, out=tmp_path / "run")
    monkeypatch.undo()
    write_shards(shards, {"train-0.tar": 8, "train-1.tar": 20})
    with pytest.raises(
        ValueError, match=r"3 shards and there are 2; .* was train-1\.tar of 30,720"
    ):
        train(resume=tmp_path / "run")
    write_shards(shards, {f"train-{n}.tar": 9 for n in range(3)})
    assert (shards / "train-1.tar").stat().st_size == 30_720
    with pytest.raises(
        ValueError, match=r"train-.\.tar has changed while it was in use; put it ba"
    ):
        train(resume=tmp_path / "run")
    for shard in gone.iterdir():
        shard.rename(shards / shard.name)
    resumed = train(resume=tmp_path / "run")
    assert_same(resumed, train(recipe, out=tmp_path / "whole"))


def train_together(out: Path, folder: Path, stop_after: int | None) -> None:
    recipe = make_recipe(tables(folder))
    dataset = open_recipe(recipe.data)
    if processes.is_first() and not (out / "recipe.toml").exists():
        create_run(out, recipe)
    run = Run(out)
    system = prepare_system(run, recipe, dataset, torch.device("cpu"))
    train_run(recipe, dataset, system, run, StopsAfter(stop_after))


@pytest.mark.slow
def test_several_processes(folder: Path, whole: Run, tmp_path: Path) -> None:
    """They go on where they stopped, and name what one process would name."""
    together(2, train_together, tmp_path / "whole", folder, None)
    together(2, train_together, tmp_path / "run", folder, 15)
    together(2, train_together, tmp_path / "run", folder, None)
    assert_same(Run(tmp_path / "run"), Run(tmp_path / "whole"))
    names = [
        [line for line in run.metrics() if line["kind"] == "left out"]
        for run in (Run(tmp_path / "run"), whole)
    ]
    assert names[0] == names[1]


def test_a_run_is_analysed_over_a_sample_of_the_stream(
    folder: Path, whole: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_of_stream, "NUM_SAMPLES", 40)
    dataset = open_recipe(whole.recipe().data)
    train = sample_of_stream.sampled(dataset).split("train")
    assert 40 - 2 <= len(train.image_names) == len(set(train.image_names)) <= 40
    assert {name.partition("/")[0] for name in train.image_names} > {"train-0.tar"}
    evaluate_run(whole, dataset, torch.device("cpu"), "dev")
    analysis = load_analysis(whole.analysis)
    assert analysis.num_batches == len(train.captions) // 4
    assert sum(analysis.positives) >= 2 * 4 * analysis.num_batches


def test_a_comparison_with_second_rounds_is_refused_before_it_trains(
    folder: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "streams.toml"
    recipe.write_text(
        f"""
        title = "streams"
        [datasets.mine]
        images = {{ source = "{folder}", stream = true, epoch_samples = 44 }}
        [models.small]
        reads = "images"
        model = {{ name = "vse++", backbone = "{folder / "resnet"}" }}
        [objectives.triplet]
        [objectives.offline-triplet]
        after = "triplet"
        """
    )
    with pytest.raises(ValueError, match=r"mining compares all .* leave data\.stream out, or ch"):
        compare(recipe, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_features_and_mined_negatives_are_refused(folder: Path, tmp_path: Path) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"model": {"name": "vse++"}}, r"a stream has pictures: set model\.backbone"),
        ({"offline": {"every": 1}}, r"is a stream, .* leave data\.stream out"),
    ]
    for changed, sentence in refused:
        with pytest.raises(ValueError, match=sentence):
            train({**tables(folder), **changed}, out=tmp_path / "refused")
        assert not (tmp_path / "refused").exists()


def test_positives_by_text_need_all_captions_at_once(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"which a stream does not have at once: leave data.stream"
    ):
        train({**tables(folder), "objective": {"positives": "text"}}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
