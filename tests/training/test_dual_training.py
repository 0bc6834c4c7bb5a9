"""Dual encoders through the whole of training: recipes, runs, export, the command line."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import here, in_a_process, refused
from models import tiny_dual
from small_runs import open_data
from torch import Tensor
from torch.nn.functional import normalize

from gradspace.runs.embed import embed_captions, embed_pictures
from gradspace.runs.export import export_run
from gradspace.runs.folder import Run, create_run
from gradspace.runs.recipe import Recipe, make_recipe
from gradspace.runs.represent import embed_split
from gradspace.runs.system import is_pretrained, load_system, new_system, prepare_system
from gradspace.tensor_files import load_tensors
from gradspace.training import train_run
from gradspace.training.loop import Trainer
from gradspace.training.monitor import Monitor
from gradspace.training.stopping import Stopping

CPU = torch.device("cpu")
DATA = {"source": "scenes", "num_train": 32, "num_dev": 10, "num_test": 10}
TRAINING = {"epochs": 2, "batch_size": 32, "learning_rate": 1e-3, "warm_up_steps": 2}
KINDS = ("clip", "siglip", "siglip2", "align")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("networks")
    return {kind: tiny_dual.FAMILIES[kind](root / kind) for kind in KINDS}


def dual_recipe(folder: Path, goal: str = "circle/sigmoid-ms", **training: Any) -> Recipe:
    model = {key: training.pop(key) for key in MODEL_KEYS & training.keys()}
    return make_recipe(
        {
            "data": DATA,
            "model": {"name": "dual", "pretrained": str(folder), **model},
            "objective": {"name": goal},
            "training": {**TRAINING, **training},
        }
    )


MODEL_KEYS = {"train", "image_rate", "text_rate", "learn_temperature", "lora_rank"}


def trainer(out: Path, recipe: Recipe) -> Trainer:
    dataset, run = open_data(recipe), create_run(out, recipe)
    return Trainer(recipe, dataset, new_system(recipe, dataset, run, CPU), run, Monitor(None, 0))


def trained(out: Path, recipe: Recipe) -> Run:
    started = trainer(out, recipe)
    started.run_epochs(Stopping())
    return started.run


def losses(run: Run) -> list[float]:
    return [line["loss"] for line in run.metrics() if line["kind"] == "epoch"]


# --- fine-tuning and export -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_fine_tuned_saved_and_loaded_by_plain_transformers(
    kind: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

    run = trained(tmp_path / "run", dual_recipe(folders[kind], epochs=3))
    assert losses(run)[-1] < losses(run)[0]
    export_run(run.folder, tmp_path / "out")
    network, report = AutoModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report.values()), report
    pixels = AutoImageProcessor.from_pretrained(tmp_path / "out")(
        tiny_dual.photos(), return_tensors="pt"
    )
    tokens = AutoTokenizer.from_pretrained(tmp_path / "out")(
        tiny_dual.CAPTIONS, padding="max_length", truncation=True, return_tensors="pt"
    )
    tokens.pop("token_type_ids", None)
    with torch.no_grad():
        plain = network.eval()(**pixels, **tokens)
    system = load_system(run.folder, CPU)
    images, texts = plain.image_embeds, plain.text_embeds
    near: dict[str, Any] = {"rtol": 0, "atol": 1e-6}
    torch.testing.assert_close(
        embed_pictures(system, tiny_dual.photos()), normalize(images, dim=-1), **near
    )
    torch.testing.assert_close(
        embed_captions(system, tiny_dual.CAPTIONS), normalize(texts, dim=-1), **near
    )
    before = load_system(folders[kind], CPU)
    moved = embed_captions(system, ["a red ball"]) - embed_captions(before, ["a red ball"])
    assert moved.abs().max() > 1e-3


@pytest.mark.slow
def test_lora_is_trained_saved_and_merged(folders: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("peft")
    run = trained(tmp_path / "run", dual_recipe(folders["clip"], train="lora", learning_rate=1e-2))
    assert losses(run)[-1] < losses(run)[0]
    export_run(run.folder, tmp_path / "out")
    split = open_data(run.recipe()).splits["test"]
    adapted = embed_split(load_system(run.folder, CPU), split)
    merged = embed_split(load_system(tmp_path / "out", CPU), split)
    torch.testing.assert_close(adapted.images, merged.images, rtol=0, atol=1e-6)
    torch.testing.assert_close(adapted.texts, merged.texts, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_an_export_can_be_trained_on(folders: dict[str, Path], tmp_path: Path) -> None:
    run = trained(tmp_path / "run", dual_recipe(folders["clip"], epochs=1))
    export_run(run.folder, tmp_path / "out")
    again = trained(tmp_path / "again", dual_recipe(tmp_path / "out", epochs=1))
    assert losses(again)[0] < losses(run)[0]


def test_an_export_overwrites_nothing(folders: dict[str, Path], tmp_path: Path) -> None:
    run = trained(tmp_path / "run", dual_recipe(folders["clip"], epochs=1))
    with pytest.raises(ValueError, match="exists and is not an empty folder"):
        export_run(run.folder, folders["clip"])


# --- the loop -------------------------------------------------------------------------------------


class StopAfter(Stopping):
    """Asked to stop at the n-th look."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks

    @property
    def requested(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    @requested.setter
    def requested(self, value: bool) -> None:
        pass


@pytest.mark.parametrize("changes", [{}, {"train": "lora"}, {"precision": "bfloat16"}])
@pytest.mark.slow
def test_a_resumed_run_has_the_same_numbers(
    changes: dict[str, Any], folders: dict[str, Path], tmp_path: Path
) -> None:
    if changes.get("train") == "lora":
        pytest.importorskip("peft")
    recipe = dual_recipe(folders["clip"], **changes)
    whole = trained(tmp_path / "whole", recipe)
    stopped = trainer(tmp_path / "stopped", recipe)
    stopped.run_epochs(StopAfter(3))
    run, dataset = stopped.run, open_data(recipe)
    torch.manual_seed(123)
    system = prepare_system(run, recipe, dataset, CPU)
    with Monitor(None, 0) as monitor:
        train_run(recipe, dataset, system, run, monitor)
    for name in ("best", "last"):
        expected, _ = load_tensors(getattr(whole, name))
        found, _ = load_tensors(getattr(run, name))
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[key], found[key]) for key in expected)


@pytest.mark.parametrize("kind", ["clip", "siglip", "siglip2"])
@pytest.mark.parametrize("goal", ["circle/sigmoid-ms", "nt-xent", "siglip"])
def test_chunks_have_the_gradient_of_the_batch(
    kind: str, goal: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    """With the learned temperature, where there is one."""
    learned = {"learn_temperature": goal in ("nt-xent", "siglip")}
    found: list[dict[str, Tensor]] = []
    for chunk in (None, 5):
        recipe = dual_recipe(folders[kind], goal, chunk=chunk, batch_size=16, **learned)
        started = trainer(tmp_path / str(chunk), recipe)
        started.system.model.double()
        started._backward(next(iter(started.batches())))
        named = started.system.model.named_parameters()
        found.append({name: p.grad for name, p in named if p.grad is not None})
    assert found[0].keys() == found[1].keys()
    assert ("dual.network.logit_scale" in found[0]) == learned["learn_temperature"]
    for name in found[0]:
        torch.testing.assert_close(found[0][name], found[1][name], rtol=1e-5, atol=1e-7)


# --- the learned temperature ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "goal", "names"),
    [
        ("clip", "nt-xent", ["logit_scale"]),
        ("siglip", "siglip", ["logit_scale", "logit_bias"]),
        ("align", "nt-xent", ["temperature"]),
    ],
)
@pytest.mark.slow
def test_the_temperature_is_learned_where_asked(
    kind: str, goal: str, names: list[str], folders: dict[str, Path], tmp_path: Path
) -> None:
    def temperatures(run: Run) -> list[Tensor]:
        tensors, _ = load_tensors(run.last)
        return [tensors[f"model.dual.network.{name}"] for name in names]

    fixed = trained(tmp_path / "fixed", dual_recipe(folders[kind], goal, epochs=1))
    asked = dual_recipe(folders[kind], goal, epochs=1, learn_temperature=True)
    learned = trained(tmp_path / "learned", asked)
    network = load_system(folders[kind], CPU).model.state_dict()
    for name, kept, moved in zip(names, temperatures(fixed), temperatures(learned), strict=True):
        start = network[f"dual.network.{name}"]
        assert torch.equal(kept, start)
        assert not torch.equal(moved, start)


# --- recipes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"model": {"name": "dual"}}, "dual needs model.pretrained: the folder or hub name"),
        ({"model": {"pretrained": "x"}}, r"vse\+\+ takes model.backbone and model.text_encoder"),
        ({"model": {"backbone": "y"}}, "leave model.backbone, model.text_encoder and data.feat"),
        ({"data": {"features": "f.npy"}}, "leave model.backbone, model.text_encoder and data.feat"),
        ({"finetune": {"epochs": 1}}, "finetune needs model.backbone"),
        ({"model": {"learn_temperature": True}}, "is for nt-xent and siglip: triplet-hard has no"),
        (
            {
                "model": {"learn_temperature": True},
                "objective": {"name": "nt-xent", "temperature": 0.05},
            },
            "model.learn_temperature replaces objective.temperature",
        ),
    ],
)
def test_recipes_that_make_no_sense(tables: dict[str, Any], message: str) -> None:
    alone = tables.get("model", {}) in ({"name": "dual"}, {"pretrained": "x"})
    given = {} if alone else {"name": "dual", "pretrained": "x"}
    with pytest.raises(ValueError, match=message):
        make_recipe({**tables, "model": {**given, **tables.get("model", {})}})


# --- the command line -----------------------------------------------------------------------------


SMALL = [f"--set=data.{key}={value}" for key, value in DATA.items() if key != "source"]


@pytest.mark.slow
def test_from_zero_shot_to_export(folders: dict[str, Path], tmp_path: Path) -> None:
    gradspace = partial(in_a_process, cwd=tmp_path)
    shown = gradspace(
        *("train", "--model", "dual", "--data", "scenes", "--objective", "circle/sigmoid-ms"),
        *("--set", f"model.pretrained={folders['siglip']}", "--set", "training.epochs=1", *SMALL),
        *("--chunk", "10", "--set", "training.precision=bfloat16", "--out", "run"),
    )
    assert shown.returncode == 0, shown.stderr
    exported = gradspace("export", "run", "--out", "out")
    assert exported.returncode == 0, exported.stderr
    assert "AutoModel.from_pretrained('out') loads it" in exported.stdout
    assert exported.stderr == ""
    report = gradspace("embed", tmp_path / "out", "--text", "a red ball", "--out", "e.safetensors")
    assert report.returncode == 0, report.stderr
    tensors, _ = load_tensors(tmp_path / "e.safetensors")
    expected = embed_captions(load_system(tmp_path / "run", CPU), ["a red ball"])
    torch.testing.assert_close(tensors["texts"], expected, rtol=0, atol=1e-6)


def test_evaluate_without_training(folders: dict[str, Path], photos: Path) -> None:
    shown = here("evaluate", folders["clip"], "--data", photos, "--json")
    assert shown.returncode == 0, shown.stderr
    assert "rsum" in json.loads(shown.stdout)
    both = here("evaluate", folders["clip"], folders["siglip"], "--data", photos)
    assert both.returncode == 0, both.stderr


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "images").mkdir(parents=True)
    for number, photo in enumerate(tiny_dual.photos()):
        photo.save(folder / "images" / f"{number}.png")
    rows = [f"{number}.png\tpicture number {number}" for number in range(4)]
    (folder / "captions.tsv").write_text("\n".join(["image\tcaption", *rows]))
    (folder / "test.txt").write_text("\n".join(f"{number}.png" for number in range(4)))
    return folder


def test_names_on_the_hub_are_told_from_runs(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for own in ("runs/first", "comparisons/table", "demo/runs", "../first", "~/first"):
        assert not is_pretrained(Path(own)), own
    (tmp_path / "runs").mkdir()
    assert is_pretrained(Path("openai/clip-vit-base-patch32"))
    assert is_pretrained(folders["clip"])
    for other in ("runs", "runs/mistake", "mistake", "a/b/c", tmp_path / "mistake"):
        assert not is_pretrained(Path(other)), other
    (tmp_path / "runs" / "config.json").write_text("{}")
    (tmp_path / "runs" / "recipe.toml").write_text("")
    assert not is_pretrained(Path("runs")), "a run"


def test_bad_requests_are_one_sentence(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    cases = {
        (
            "evaluate",
            folders["clip"],
        ): "is a pretrained model, which has no dataset of its own",
        ("evaluate", "runs/mistake", "--data", "scenes"): "does not exist: expected the folder of",
        ("export", folders["clip"], "--out", "x"): "is not a run: it has no recipe.toml",
        ("train", "--model", "dual"): "dual needs model.pretrained",
        (
            *("train", "--model", "dual", "--set", "model.pretrained=./no", *SMALL),
            *("--out", "x"),
        ): "no does not exist",
    }
    for arguments, message in cases.items():
        assert message in refused(*arguments)
