"""The training loop on the built-in data: what a run leaves, and what stops it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from samples import GOAL_NAMES, LOSS_NAMES
from small_runs import open_data, small_recipe, train_small
from torch import Tensor

from gradspace.data import Vocabulary
from gradspace.files import only_writer
from gradspace.metrics import retrieval_report
from gradspace.models.vse_infinity import VSEInfinity
from gradspace.runs.finish import evaluate_run
from gradspace.runs.folder import create_run, open_run
from gradspace.runs.represent import embed_split
from gradspace.runs.system import load_system, new_system
from gradspace.tensor_files import load_tensors, save_tensors
from gradspace.training import train_run
from gradspace.training.health import PATIENCE, CollapseWatch, TrainingError
from gradspace.training.loop import Trainer
from gradspace.training.monitor import Monitor
from gradspace.training.readings import EVERY
from gradspace.training.state import TrainingState


def test_a_run_leaves_what_it_promises(tmp_path: Path) -> None:
    run = train_small(tmp_path / "run", objective={"name": "circle/sigmoid-ms"})
    assert {path.name for path in run.folder.iterdir()} == {
        "recipe.toml",
        "environment.json",
        "metrics.jsonl",
        "vocabulary.json",
        "last.safetensors",
        "best.safetensors",
        "README.md",
        ".lock",
    }
    environment = json.loads((run.folder / "environment.json").read_text())
    assert environment["versions"]["torch"] == torch.__version__
    steps = [line for line in run.metrics() if line["kind"] == "step"]
    epochs = [line for line in run.metrics() if line["kind"] == "epoch"]
    assert [line["step"] for line in steps] == [1, 6, 11, 16]
    assert steps[0]["image_to_text"]["per_query"] >= 0
    assert steps[0]["gradient"] > 0
    assert [line["epoch"] for line in epochs] == [0, 1]
    assert open_run(run.folder).recipe() == small_recipe(objective={"name": "circle/sigmoid-ms"})


def test_the_best_weights_are_those_of_the_best_epoch(tmp_path: Path) -> None:
    run = train_small(tmp_path / "run", training={"epochs": 3})
    rsums = [line["dev"]["rsum"] for line in run.metrics() if line["kind"] == "epoch"]
    _, record = load_tensors(run.best)
    assert record["dev"]["rsum"] == max(rsums)
    system = load_system(run.folder, torch.device("cpu"))
    embeddings = embed_split(system, open_data(run.recipe()).splits["dev"])
    report = retrieval_report(embeddings.scores(), embeddings.positives())
    assert report.rsum == pytest.approx(max(rsums))


def test_results_are_of_the_best_weights_or_not_there(tmp_path: Path) -> None:
    run = train_small(tmp_path / "run")
    dataset = open_data(run.recipe())
    evaluate_run(run, dataset, torch.device("cpu"))
    run.last.unlink()
    assert run.results("test").exists()
    system = new_system(run.recipe(), dataset, run, torch.device("cpu"))
    train_run(run.recipe(), dataset, system, run, Monitor(None, 0))
    assert not run.results("test").exists()
    assert not run.analysis.exists()


def test_a_run_is_trained_by_one_process_at_a_time(tmp_path: Path) -> None:
    recipe = small_recipe()
    run = create_run(tmp_path / "run", recipe)
    dataset = open_data(recipe)
    system = new_system(recipe, dataset, run, torch.device("cpu"))
    with only_writer(run.folder), pytest.raises(ValueError, match="another process is writing"):
        train_run(recipe, dataset, system, run, Monitor(None, 0))
    assert not run.metrics_file.exists()


@pytest.mark.parametrize("name", [*LOSS_NAMES, *GOAL_NAMES[::4]])
def test_every_kind_of_objective_trains(name: str, tmp_path: Path) -> None:
    run = train_small(tmp_path / "run", objective={"name": name}, training={"epochs": 1})
    (epoch,) = (line for line in run.metrics() if line["kind"] == "epoch")
    assert torch.tensor(epoch["loss"]).isfinite()


@pytest.mark.parametrize(
    "training",
    [
        {"captions_per_image": "all", "batch_size": 16},
        {"accumulate": 2},
        {"precision": "bfloat16"},
        {"ema": 0.9},
        {"optimizer": "adamw", "weight_decay": 0.1, "warm_up_steps": 5},
        {"num_workers": 2},
        {"clip": 0.01},
    ],
    ids=lambda training: next(iter(training)),
)
def test_options_of_training(training: dict[str, Any], tmp_path: Path) -> None:
    run = train_small(tmp_path / "run", training=training)
    steps = [line for line in run.metrics() if line["kind"] == "step"]
    assert steps[-1]["loss"] > 0
    plain = train_small(tmp_path / "plain")
    changed = weights(run.folder) != weights(plain.folder)
    assert changed != ("num_workers" in training), "workers change nothing, the rest does"


def weights(folder: Path) -> list[list[float]]:
    tensors, _ = load_tensors(folder / "best.safetensors")
    return [tensor.flatten()[:50].tolist() for _, tensor in sorted(tensors.items())]


def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    first, again = train_small(tmp_path / "a"), train_small(tmp_path / "b")
    assert list(first.metrics()) == list(again.metrics())
    other = train_small(tmp_path / "c", training={"epochs": 2}, objective={"margin": 0.3})
    assert list(other.metrics()) != list(first.metrics())


def test_accumulated_gradients_are_the_mean_over_batches(tmp_path: Path) -> None:
    """Two half batches by hand equal one accumulated step."""
    recipe = small_recipe(training={"accumulate": 2, "clip": 1e9})
    dataset = open_data(recipe)
    run = create_run(tmp_path / "run", recipe)
    system = new_system(recipe, dataset, run, torch.device("cpu"))
    with Monitor(None, 0) as monitor:
        trainer = Trainer(recipe, dataset, system, run, monitor)
        batches = list(trainer.batches())[:2]
        model = system.model
        expected: dict[str, Tensor] = {}
        for batch in batches:
            images, texts = model(batch.images, batch.tokens, batch.lengths)
            value = trainer.parts.loss(images, texts, batch.image_ids, batch.text_ids) / 2
            gradients = torch.autograd.grad(value, list(model.parameters()))
            for (name, _), gradient in zip(model.named_parameters(), gradients, strict=True):
                expected[name] = expected.get(name, 0) + gradient
        found: dict[str, Tensor] = {}

        def record(*_: object) -> None:
            found.update(
                {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
            )

        trainer.parts.optimizer.register_step_pre_hook(record)
        trainer.train_on(batches[0])
        trainer.parts.state = TrainingState(batch=1)
        trainer.train_on(batches[1])
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("warm_up", "remembered"), [(None, 500), ("triplet", 320)])
def test_the_memory_lasts_until_the_objective_changes(
    warm_up: str | None, remembered: int, tmp_path: Path
) -> None:
    """Two epochs of 320 captions, of which the first may have had another objective."""
    objective = {"name": "nt-xent", "memory": 500, "warm_up": warm_up}
    run = train_small(tmp_path / "run", objective=objective)
    tensors, _ = load_tensors(run.last)
    assert len(tensors["loss.memory.text_ids"]) == remembered
    assert weights(run.folder) != weights(
        train_small(tmp_path / "b", objective={"name": "nt-xent"}).folder
    )


def test_numbers_read_later_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where no step waits for its loss; epochs of 5 steps end in between."""
    at_once = train_small(tmp_path / "at once")
    monkeypatch.setitem(EVERY, "cpu", 3)
    later = train_small(tmp_path / "later", training={"save_every": 0})
    assert list(later.metrics()) == list(at_once.metrics())
    assert weights(later.folder) == weights(at_once.folder)


def test_a_gradient_that_is_none_is_noticed_before_it_is_saved(tmp_path: Path) -> None:
    recipe = small_recipe()
    dataset, run = open_data(recipe), create_run(tmp_path / "run", recipe)
    with Monitor(None, 0) as monitor:
        system = new_system(recipe, dataset, run, torch.device("cpu"))
        trainer = Trainer(recipe, dataset, system, run, monitor)
        trainer.readings.add(7, torch.tensor(1.5), torch.tensor(torch.nan))
        with pytest.raises(TrainingError, match=r"not finite at step 7 \(loss 1.5\); lower"):
            trainer._save()
    assert not run.last.exists()


# --- runs that go wrong -------------------------------------------------------------------------


def test_collapse_is_explained() -> None:
    watch = CollapseWatch()
    same = torch.nn.functional.normalize(torch.ones(8, 4) + 0.001 * torch.randn(8, 4))
    apart = torch.nn.functional.normalize(torch.randn(8, 4))
    for step in range(PATIENCE - 1):
        watch.check(same, same, step)
    watch.check(same, apart, step=30)  # texts are apart: not collapsed
    for step in range(PATIENCE - 1):
        watch.check(same, same, step)
    with pytest.raises(TrainingError, match=r"training collapsed: at step 40 .*warm_up"):
        watch.check(same, same, 40)


def test_a_collapsed_run_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoder that maps everything to one point, trained at a rate of nothing."""
    from gradspace.models.vse_pp import VSEPlusPlus

    def one_point(self: VSEPlusPlus, *inputs: Tensor) -> Tensor:
        bias = self.project.bias + 1
        return torch.nn.functional.normalize(bias.expand(len(inputs[0]), -1))

    monkeypatch.setattr(VSEPlusPlus, "embed_images", one_point)
    monkeypatch.setattr(VSEPlusPlus, "embed_texts", one_point)
    with pytest.raises(TrainingError, match="training collapsed"):
        train_small(tmp_path / "run", training={"epochs": 40})


def test_a_gradient_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"the gradient of .* is not finite at step 0"):
        train_small(tmp_path / "run", objective={"name": "nt-xent", "temperature": 1e-40})


def test_an_existing_run_is_not_overwritten(tmp_path: Path) -> None:
    run = train_small(tmp_path / "run", training={"epochs": 1})
    with pytest.raises(ValueError, match="contains a run already: resume it with --resume"):
        create_run(run.folder, run.recipe())
    with pytest.raises(ValueError, match="is not a run"):
        open_run(tmp_path)


def test_a_run_that_was_refused_can_be_started_anew(tmp_path: Path) -> None:
    wrong = small_recipe(model={"backbone": str(tmp_path / "none")})
    run = create_run(tmp_path / "a", wrong)
    with pytest.raises(ValueError, match="none"):
        new_system(wrong, open_data(wrong), run, torch.device("cpu"))
    run.log(kind="start", step=0, dev={})  # as one that starts from the weights of another
    assert train_small(tmp_path / "a").best.exists()


# --- a transformers text encoder ----------------------------------------------------------------


def test_a_run_with_a_transformers_text_encoder_loads_from_its_folder_alone(tmp_path: Path) -> None:
    """Trained from a small BERT, which is gone when the run is loaded again."""
    from models.tiny import bert

    encoder = bert(tmp_path / "bert")
    run = train_small(
        tmp_path / "run",
        model={"name": "vse-infinity", "text_encoder": str(encoder)},
        objective={"name": "nt-xent"},
        training={"epochs": 1},
    )
    shutil.rmtree(encoder)
    system = load_system(run.folder, torch.device("cpu"))
    embeddings = embed_split(system, open_data(run.recipe()).splits["dev"])
    report = retrieval_report(embeddings.scores(), embeddings.positives())
    (epoch,) = (line for line in run.metrics() if line["kind"] == "epoch")
    assert report.rsum == pytest.approx(epoch["dev"]["rsum"])


def test_features_from_elsewhere_are_a_grid_where_the_recipe_says_so(tmp_path: Path) -> None:
    """And a run that was trained before runs said it had the layers of a detector's regions."""
    tables: dict[str, Any] = {"model": {"name": "vse-infinity"}, "objective": {"name": "nt-xent"}}
    tables["training"] = {"epochs": 1}
    detector = train_small(tmp_path / "a", **tables)
    grid = train_small(tmp_path / "b", **tables, data={"regions": "grid"})
    for run, is_grid in ((detector, False), (grid, True)):
        system = load_system(run.folder, torch.device("cpu"))
        assert isinstance(system.model, VSEInfinity)
        assert (system.model.grid, system.model.refine is None) == (is_grid, is_grid)
    tensors, record = load_tensors(detector.best)
    save_tensors(
        detector.best, tensors, {k: v for k, v in record.items() if k != "feature_regions"}
    )
    earlier = load_system(detector.folder, torch.device("cpu")).model
    assert isinstance(earlier, VSEInfinity)
    assert earlier.refine is not None


def test_a_run_that_starts_from_another_has_its_words(tmp_path: Path) -> None:
    first = train_small(tmp_path / "first", training={"epochs": 1})
    plain = Vocabulary.load(first.folder / "vocabulary.json")
    then = train_small(
        tmp_path / "then",
        init=str(first.folder),
        data={"num_train": 48},
        model={"punctuation": True},
        training={"epochs": 1},
    )
    assert Vocabulary.load(then.folder / "vocabulary.json") == plain
