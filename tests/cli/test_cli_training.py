"""train, evaluate, embed and data on the command line, with real files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from commands import here, in_a_process, refused
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file
from small_runs import small_recipe, train_small

from gradspace.data.inputs import PictureReading
from gradspace.metrics import retrieval_report
from gradspace.models.prepare.pictures import RandomPart, WholePicture
from gradspace.models.vse_infinity import VSEInfinity
from gradspace.runs.data import open_recipe
from gradspace.runs.folder import Run
from gradspace.runs.represent import represent_split
from gradspace.runs.system import load_system, new_system
from gradspace.scores.represented import load_embeddings
from gradspace.training.start import train

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_small(tmp_path_factory.mktemp("runs") / "a")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A dataset of one's own: 12 pictures, 2 captions each, in a folder."""
    folder = tmp_path / "photos"
    (folder / "images").mkdir(parents=True)
    rows, names = ["image\tcaption"], []
    for number in range(12):
        name = f"{number}.png"
        colour = (20 * number, 255 - 20 * number, 100)
        Image.new("RGB", (40, 30), colour).save(folder / "images" / name)
        rows += [f"{name}\ta picture of colour {number}", f"{name}\tcolour number {number}"]
        names.append(name)
    (folder / "captions.tsv").write_text("\n".join(rows))
    for split, part in {"train": names[:6], "dev": names[6:9], "test": names[9:]}.items():
        (folder / f"{split}.txt").write_text("\n".join(part))
    return folder


@pytest.fixture
def backbone(tmp_path: Path) -> Path:
    """A tiny ResNet with random weights, saved as transformers saves it."""
    from transformers import ResNetConfig, ResNetModel

    folder = tmp_path / "backbone"
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
    ResNetModel(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(
        json.dumps(
            {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"height": 32, "width": 32}}
        )
    )
    return folder


def train_on(photos: Path, features: Path, run: Path, *more: str) -> None:
    done = here(
        *("train", "--data", photos, "--set", f"data.features={features}", "--out", run),
        *("--set", "training.batch_size=4", "--set", "training.epochs=1"),
        *("--set", "model.width=16", *more),
    )
    assert done.returncode == 0, done.stderr


def test_evaluate_prints_a_table_or_json(trained: Run) -> None:
    shown = here("evaluate", trained.folder)
    assert shown.returncode == 0, shown.stderr
    assert "image -> text" in shown.stdout
    assert "recalls and mAP in percent" in shown.stdout.replace("\n", "")
    ranks = shown.stdout.partition("cross-retrieval rank, in percent:\n")[2].splitlines()[0]
    shares = [float(part.split()[0]) for part in ranks.split(": ")[1:]]
    assert sum(shares) == pytest.approx(100, abs=0.5)
    report = json.loads(here("evaluate", trained.folder, "--split", "dev", "--json").stdout)
    best = max(line["dev"]["rsum"] for line in trained.metrics() if line["kind"] == "epoch")
    assert report["rsum"] == pytest.approx(best)


def test_an_ensemble_averages_scores(trained: Run) -> None:
    one = json.loads(here("evaluate", trained.folder, "--json").stdout)
    same_twice = json.loads(here("evaluate", trained.folder, trained.folder, "--json").stdout)
    assert same_twice["rsum"] == pytest.approx(one["rsum"])


def test_embed_a_split_and_own_sentences(trained: Run, tmp_path: Path) -> None:
    assert here("embed", trained.folder, "--split", "dev", "--out", tmp_path / "e").returncode == 0
    found = load_embeddings(tmp_path / "e")
    assert found.images.shape == (40, 32)
    assert found.texts.shape == (200, 32)
    torch.testing.assert_close(found.texts.norm(dim=1), torch.ones(200))
    shown = here("embed", trained.folder, "--text", "a red ball", "--out", tmp_path / "own")
    assert shown.returncode == 0, shown.stderr
    assert load_embeddings(tmp_path / "own").texts.shape == (1, 32)
    told = refused("embed", trained.folder, "--image", "x.png", "--out", tmp_path / "own")
    assert "x.png is missing or not a picture" in told


@pytest.mark.slow
def test_from_own_pictures_to_a_trained_model(photos: Path, backbone: Path, tmp_path: Path) -> None:
    """Check, train from the images in two steps, evaluate, embed a picture."""
    assert in_a_process("data", "check", photos).returncode == 0
    out = tmp_path / "run"
    done = in_a_process(
        *("train", "--data", photos, "--model", "vse++", "--objective", "nt-xent", "--out", out),
        *("--set", f"model.backbone={backbone}", "--set", "model.width=16"),
        *("--set", "training.epochs=1", "--set", "training.batch_size=4"),
        *("--set", "finetune.epochs=1", "--set", "training.num_workers=1"),
    )
    assert done.returncode == 0, done.stderr
    shutil.rmtree(backbone)  # a run needs nothing but its folder and the data
    assert "rsum" in in_a_process("evaluate", out).stdout
    picture = photos / "images" / "0.png"
    own = tmp_path / "own"
    embedded = in_a_process("embed", out, "--image", picture, "--text", "colour", "--out", own)
    assert embedded.returncode == 0, embedded.stderr
    assert load_embeddings(own).images.shape == (1, 16)


def test_features_are_computed_once_and_trained_on(
    photos: Path, tmp_path: Path, backbone: Path
) -> None:
    out = tmp_path / "features"
    arguments = ("data", "features", photos, "--backbone", backbone, "--out", out, "--grid")
    done = here(*arguments, "--num-workers", "0")
    assert done.returncode == 0, done.stderr
    again = here(*arguments, "--num-workers", "0")
    assert again.returncode == 0, again.stderr
    train_on(photos, out, tmp_path / "run", "--model", "vsrn")


def test_learnt_pooling_of_whole_pictures_goes_on_with_the_backbone(
    photos: Path, tmp_path: Path, backbone: Path
) -> None:
    """Features of a grid have the layers of a backbone's, and its size is that of the pictures."""
    features, frozen, tuned = (tmp_path / name for name in ("features", "frozen", "tuned"))
    made = here(
        *("data", "features", photos, "--backbone", backbone, "--out", features, "--grid"),
        *("--size", "48", "--whole", "--num-workers", "0"),
    )
    assert made.returncode == 0, made.stderr
    assert "shape [36, 16]" in made.stdout, "6 x 6 cells, where the network's own size gives 4 x 4"
    shared = (
        *("--data", photos, "--model", "vse-infinity", "--objective", "nt-xent"),
        *("--set", "model.width=8", "--set", "training.batch_size=4"),
    )
    first = here(
        *("train", *shared, "--set", f"data.features={features}", "--set", "training.epochs=1"),
        *("--out", frozen),
    )
    assert first.returncode == 0, first.stderr
    system = load_system(frozen)
    assert isinstance(system.model, VSEInfinity)
    assert (system.feature_regions, system.model.refine) == ("grid", None)
    assert system.model.touch.mask == system.model.touch.num_tokens - 1, "the word <mask>"
    second = here(
        *("train", *shared, "--init", frozen, "--set", f"model.backbone={backbone}"),
        *("--set", "model.image_size=48", "--set", "model.whole_images=true"),
        *("--set", "training.epochs=0", "--set", "finetune.epochs=1", "--out", tuned),
    )
    assert second.returncode == 0, second.stderr
    picture = Image.new("RGB", (90, 30))
    reading, training = load_system(tuned).reading, load_system(tuned).training_reading
    assert isinstance(reading, PictureReading)
    assert isinstance(training, PictureReading)
    assert reading.prepare([picture]).shape == training.prepare([picture]).shape == (1, 3, 48, 48)
    assert isinstance(reading.pixels, WholePicture)
    assert isinstance(training.pixels, RandomPart)
    told = refused(
        "train", "--data", photos, "--set", "model.image_size=48", "--out", tmp_path / "x"
    )
    assert "say how model.backbone reads pictures: give it too" in told


def test_features_of_photos_of_which_one_is_broken(
    photos: Path, tmp_path: Path, backbone: Path
) -> None:
    (photos / "images" / "2.png").write_bytes(b"no picture")
    out, run = tmp_path / "features", tmp_path / "run"
    arguments = ("data", "features", photos, "--backbone", backbone, "--out", out)
    assert "2.png" in refused(*arguments, "--num-workers", "0")
    done = here(*arguments, "--skip-broken", "--num-workers", "0")
    assert done.returncode == 0, done.stderr
    train_on(photos, out, run, "--set", "data.skip_broken=true")


def test_splits_that_nobody_has_named_are_announced(
    photos: Path, tmp_path: Path, backbone: Path
) -> None:
    for split in ("train", "dev", "test"):
        (photos / f"{split}.txt").unlink()
    features, run = tmp_path / "features", tmp_path / "run"
    shared = ("--set", "training.batch_size=4", "--set", "training.epochs=1")
    made = here("data", "features", photos, "--backbone", backbone, "--out", features)
    assert made.returncode == 0, made.stderr
    told = "no splits are named, so 10% of the images are dev and 10% test, chosen by their"
    given = ("--data", photos, "--set", f"data.features={features}", "--set", "model.width=16")
    trained = here("train", *given, *shared, "--out", run).stdout
    sizes = "photos: train 10 images / 20 captions, dev 1 image / 2 captions, test 1 image / 2 cap"
    assert sizes in trained
    assert told in trained
    for command in (
        ("evaluate", run),
        ("embed", run, "--out", tmp_path / "vectors"),
        ("index", run, "--out", tmp_path / "index"),
        ("mine", run, "--top-texts", "9", "--top-images", "9"),
    ):
        done = here(*command)
        sizes = "10 images / 20 captions" if command[0] == "mine" else "1 image / 2 captions"
        assert f": {sizes}; {told}" in done.stdout + done.stderr, command


@pytest.mark.slow
def test_data_and_features_of_a_run_may_lie_elsewhere(
    photos: Path, tmp_path: Path, backbone: Path
) -> None:
    features, run = tmp_path / "features", tmp_path / "run"
    made = here("data", "features", photos, "--backbone", backbone, "--out", features)
    assert made.returncode == 0, made.stderr
    train_on(photos, features, run)
    before = here("evaluate", run, "--json").stdout
    elsewhere = photos.rename(tmp_path / "moved")
    moved = features.rename(tmp_path / "moved-features")
    assert f"{photos} does not exist" in refused("evaluate", run)
    assert "reads features: give them as --features" in refused(
        "evaluate", run, "--data", elsewhere
    )
    options = ("--data", elsewhere, "--features", moved)
    assert here("evaluate", run, *options, "--json").stdout == before
    vectors, lists = tmp_path / "test.safetensors", tmp_path / "lists.safetensors"
    for command in (
        ("embed", run, *options, "--out", vectors),
        ("mine", run, *options, "--out", lists, "--top-texts", "2", "--top-images", "2"),
        ("index", run, elsewhere, "--features", moved, "--out", tmp_path / "index"),
    ):
        done = here(*command)
        assert done.returncode == 0, done.stderr
    assert load_embeddings(vectors).images.shape == (3, 16)


def test_fine_tuning_goes_on_from_a_run_on_features(
    photos: Path, tmp_path: Path, backbone: Path
) -> None:
    features, frozen, tuned = (tmp_path / name for name in ("features", "frozen", "tuned"))
    made = here("data", "features", photos, "--backbone", backbone, "--out", features)
    assert made.returncode == 0, made.stderr
    shared = ("--data", photos, "--set", "model.width=16", "--set", "training.batch_size=4")
    first = here(
        *("train", *shared, "--set", f"data.features={features}", "--set", "training.epochs=1"),
        *("--out", frozen),
    )
    assert first.returncode == 0, first.stderr
    second = here(
        *("train", *shared, "--init", frozen, "--set", f"model.backbone={backbone}"),
        *("--set", "training.epochs=0", "--set", "finetune.epochs=1", "--out", tuned),
    )
    assert second.returncode == 0, second.stderr
    recipe = Run(tuned).recipe()
    dataset = open_recipe(recipe.data)
    system = new_system(recipe, dataset, Run(tmp_path), torch.device("cpu"))
    found = represent_split(system, dataset.splits["dev"])
    report = retrieval_report(found.scores(), found.positives())
    (line,) = (line for line in second.stdout.splitlines() if line.startswith("before training"))
    assert line.endswith(f"rsum {report.rsum:6.1f}")
    begun = {f"model.{name}": tensor for name, tensor in system.model.state_dict().items()}
    published = load_file(backbone / "model.safetensors")
    taken = load_file(frozen / "best.safetensors")
    assert all(torch.equal(begun.pop(name), tensor) for name, tensor in taken.items())
    assert begun
    for name, tensor in begun.items():
        assert torch.equal(tensor, published[name.removeprefix("model.images.network.")])
    best = load_file(tuned / "best.safetensors")
    weight = next(name for name in begun if name.endswith("convolution.weight"))
    assert not torch.equal(best[weight], begun[weight]), "the backbone is trained"
    assert "rsum" in here("evaluate", tuned).stdout


@pytest.mark.parametrize(("rate", "said"), [(1e-9, True), (3e-3, False)])
def test_a_start_that_no_epoch_improves(
    rate: float, said: bool, trained: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = {"epochs": 8, "learning_rate": rate}
    recipe = small_recipe(init=trained.folder, training=training)
    train(recipe, out=tmp_path / "run", device="cpu", console=Console(width=1000))
    assert (f"{trained.folder} is still the best" in capsys.readouterr().out) == said


@pytest.mark.parametrize(("name", "said"), [("constant/sigmoid", True), ("triplet-hard", False)])
def test_what_goal_shows_is_called_no_loss(
    name: str, said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = small_recipe(objective={"name": name}, training={"epochs": 1})
    train(recipe, out=tmp_path / "run", device="cpu", console=Console(width=1000))
    assert ("GOAL has no loss, only a gradient: the loss shown" in capsys.readouterr().out) == said


def test_problems_are_listed_and_stop_training(photos: Path, tmp_path: Path) -> None:
    whole = (photos / "images" / "3.png").read_bytes()
    (photos / "images" / "3.png").write_bytes(whole[: len(whole) // 2])
    (photos / "images" / "1.png").unlink()
    shown = here("data", "check", photos)
    assert shown.returncode == 1
    assert "3.png" in shown.stdout
    assert "1.png" in shown.stdout
    assert "1.png" in refused("train", "--data", photos, "--out", tmp_path / "run")


def test_bad_requests_are_one_sentence(trained: Run, tmp_path: Path) -> None:
    cases = {
        ("evaluate", tmp_path): "is not a run",
        ("evaluate", trained.folder, "--split", "val"): "no split 'val'",
        ("train", "--resume", trained.folder, "--seed", "1"): "leave the other options out",
        ("train", "--out", trained.folder): "contains a run already",
        ("train", "--model", "vsrm"): "unknown model 'vsrm'; did you mean 'vsrn'",
        ("train", "--set", "objective.warm_up=triplets"): "'triplets'; did you mean 'triplet'",
        ("train", "--data", tmp_path / "nowhere"): "does not exist",
        ("train", "--device", "tpu", "--out", tmp_path / "x"): "--device must be cpu or cuda",
    }
    for arguments, message in cases.items():
        assert message in refused(*arguments)


def test_a_finished_run_says_how_to_train_on(trained: Run, tmp_path: Path) -> None:
    told = here("train", "--resume", trained.folder).stdout.replace("\n", " ")
    command = f"train {trained.recipe_file} --init {trained.folder}"
    assert f"nothing is left of the 2 epochs of {trained.folder}; to train on from its best" in told
    assert f"gradspace {command} done: " in told
    assert here(*command.split(), "--out", tmp_path / "more").returncode == 0
    assert Run(tmp_path / "more").recipe().init == trained.folder


def test_weights_of_another_run_are_named(trained: Run, tmp_path: Path) -> None:
    wider = train_small(tmp_path / "wider", model={"width": 24}, training={"epochs": 1})
    shutil.copyfile(trained.best, wider.best)
    assert "best.safetensors does not fit this run's recipe (size mis" in refused(
        "evaluate", wider.folder
    )


def test_scenes_are_shown(tmp_path: Path) -> None:
    assert (
        here("data", "scenes", "--show", "--num", "4", "--out", tmp_path / "s.png").returncode == 0
    )
    with Image.open(tmp_path / "s.png") as sheet:
        assert sheet.width > 500
    assert "train-000001" in here("data", "scenes", "--num", "2").stdout
