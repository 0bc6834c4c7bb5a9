"""Indexing: what is new, changed, gone or broken; faults; and searching what is there."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from itertools import count
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from indexes.made_photos import write_photo, write_photos
from models.tiny import resnet
from PIL import Image
from small_runs import train_small
from torch import Tensor

from gradspace.data.open import open_dataset
from gradspace.indexes import build
from gradspace.indexes.build import IndexUpdate, update_index
from gradspace.indexes.collection import caption_file, dataset_split, photo_folder
from gradspace.indexes.index import Index, create_index, open_index
from gradspace.indexes.searcher import Query, Searcher, open_searcher
from gradspace.indexes.where import parse_condition
from gradspace.models.features import extract_features
from gradspace.runs.data import open_recipe
from gradspace.runs.embed import embed_captions, embed_pictures
from gradspace.runs.folder import create_run
from gradspace.runs.recipe import make_recipe
from gradspace.runs.recipe_tables import DataRecipe
from gradspace.runs.system import System, load_system, new_system
from gradspace.training import train_run
from gradspace.training.monitor import Monitor


def bring_up_to_date(
    out: Path, model: Path, system: System, photos: Path
) -> tuple[Index, IndexUpdate]:
    collection = photo_folder(photos)
    index = create_index(out, model, system, collection)
    return index, update_index(index, collection, system)


def expect(index: Index, system: System, photos: Path, keys: set[str]) -> None:
    """Exactly these are indexed, each with its own vector and thumbnail."""
    assert set(index.engine.fingerprints()) == keys
    for key, found in zip(sorted(keys), index.engine.get(sorted(keys)), strict=True):
        assert found is not None
        with Image.open(photos / key) as picture:
            expected = embed_pictures(system, [picture.convert("RGB")])[0].numpy()
        assert np.abs(found[1] - expected).max() < 1e-3
        thumbnail = index.thumbnails.read(key)
        assert thumbnail is not None
        assert thumbnail.startswith(b"\xff\xd8")


def names(photos: Path) -> set[str]:
    return {item.key for item in photo_folder(photos).items}


def test_only_what_is_new_changed_or_gone_is_done(
    model: Path, system: System, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "index"
    index, outcome = bring_up_to_date(out, model, system, photos)
    assert outcome == IndexUpdate(added=10)
    expect(index, system, photos, names(photos))
    write_photo(photos / "000.png", 77)
    write_photo(photos / "new.png", 78)
    (photos / "002.png").unlink()
    (photos / "004.png").write_bytes(b"broken now")
    (photos / "never.png").write_bytes(b"never a picture")
    embedded = []
    embed = system.model.embed_images

    def counted(images: Tensor) -> Tensor:
        embedded.append(len(images))
        return embed(images)

    monkeypatch.setattr(system.model, "embed_images", counted)
    index, outcome = bring_up_to_date(out, model, system, photos)
    assert sum(embedded) == 2
    assert (outcome.added, outcome.changed, outcome.removed, outcome.unchanged) == (1, 1, 2, 7)
    assert len(outcome.broken) == 2
    assert all("is broken" in reason for reason in outcome.broken)
    expect(index, system, photos, names(photos) - {"004.png", "never.png"})
    assert index.thumbnails.read("002.png") is None


def test_a_file_whose_name_is_no_text(
    model: Path, system: System, photos: Path, tmp_path: Path
) -> None:
    name = os.fsdecode(b"caf\xe9.png")
    write_photo(photos / name, 1)
    index, outcome = bring_up_to_date(tmp_path / "index", model, system, photos)
    assert outcome.broken == [f"the name of {name!r} is not text"]
    assert outcome.added == len(index.engine) == 10


def test_pictures_are_decoded_in_other_processes(
    model: Path, system: System, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "IMAGES_AT_ONCE", 3)
    collection = photo_folder(photos)
    index = create_index(tmp_path / "index", model, system, collection)
    done: list[tuple[int, int]] = []
    update_index(index, collection, system, num_workers=1, progress=lambda *now: done.append(now))
    expect(index, system, photos, names(photos))
    assert done == [(0, 10), (3, 10), (6, 10), (9, 10), (10, 10)]


# --- faults -------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.slow
def test_killed_at_a_hundred_moments(
    model: Path, system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is killed while photos come, change and go, the last complete version is found."""
    monkeypatch.setattr(build, "IMAGES_AT_ONCE", 2)
    photos, out = tmp_path / "photos", tmp_path / "index"
    write_photos(photos, range(6))
    start = time.monotonic()
    build_saving_often(out, model, system, photos)
    usual = time.monotonic() - start
    chance, versions = Random(0), set()
    for number in range(100):
        at_work = get_context("fork").Event()
        process = get_context("fork").Process(
            target=build_for_ever, args=(number, at_work, out, model, system, photos)
        )
        process.start()
        assert at_work.wait(30)
        time.sleep(chance.random() * min(usual, 0.1))
        process.kill()
        process.join()
        reader = open_index(out)
        keys = sorted(reader.engine.fingerprints())
        stored = [found for found in reader.engine.get(keys) if found is not None]
        assert [item.key for item, _ in stored] == keys
        assert len(reader.engine) == len(keys) > 0
        found = reader.engine.search(np.stack([vector for _, vector in stored]), 1, "image")
        assert all(hits[0].score > 0.999 for hits in found)
        versions.add(tuple(sorted(reader.engine.fingerprints().values())))
    assert len(versions) > 25, "every second process changes the index before it is killed"
    for path in photos.glob("*.png"):  # one may have been half written
        path.unlink()
    write_photos(photos, range(6))
    index, outcome = bring_up_to_date(out, model, system, photos)
    assert outcome.broken == []
    expect(index, system, photos, names(photos))


def build_for_ever(
    number: int, at_work: Event, out: Path, model: Path, system: System, photos: Path
) -> None:
    chance = Random(number)
    for builds in count():
        if builds == number % 2:
            at_work.set()
        write_photo(photos / f"{chance.randrange(12):03}.png", chance.randrange(1000))
        (photos / f"{chance.randrange(1, 12):03}.png").unlink(missing_ok=True)
        build_saving_often(out, model, system, photos)


def build_saving_often(out: Path, model: Path, system: System, photos: Path) -> None:
    collection = photo_folder(photos)
    update_index(create_index(out, model, system, collection), collection, system, save_every=0)


def test_an_interrupted_build_keeps_what_it_has_embedded(
    model: Path, system: System, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "IMAGES_AT_ONCE", 4)
    collection = photo_folder(photos)
    index = create_index(tmp_path / "index", model, system, collection)

    def interrupt(done: int, _: int) -> None:
        if done == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        update_index(index, collection, system, progress=interrupt)
    assert update_index(index, collection, system) == IndexUpdate(added=2, unchanged=8)
    expect(index, system, photos, names(photos))


def test_an_empty_index_may_become_another(
    model: Path, system: System, photos: Path, tmp_path: Path
) -> None:
    write_photos(tmp_path / "more", range(2))
    create_index(tmp_path / "index", model, system, photo_folder(tmp_path / "more"))
    _, outcome = bring_up_to_date(tmp_path / "index", model, system, photos)
    assert outcome == IndexUpdate(added=10)


def test_a_second_build_is_refused(
    model: Path, system: System, photos: Path, tmp_path: Path
) -> None:
    collection = photo_folder(photos)
    index = create_index(tmp_path / "index", model, system, collection)
    refused = []

    def start_another(done: int, _: int) -> None:
        if not done:
            with pytest.raises(ValueError, match="another process is writing into") as error:
                update_index(index, collection, system)
            refused.append(error)

    update_index(index, collection, system, progress=start_another)
    assert len(refused) == 1
    expect(index, system, photos, names(photos))


@pytest.mark.slow
def test_a_full_disk(
    model: Path, system: System, photos: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "IMAGES_AT_ONCE", 4)
    try:
        out = small_disk / "index"
        index, _ = bring_up_to_date(out, model, system, photos)
        before = names(photos)
        write_photos(photos, range(10, 600))
        with pytest.raises(ValueError, match=r"there is no space left for .*index: what was"):
            build_saving_often(out, model, system, photos)
        left = set(open_index(out).engine.fingerprints())
        assert before <= left < names(photos)
        [hits] = Searcher(open_index(out), system).search([Query(like="000.png")], 3)
        assert len(hits) == 3
        for path in photos.glob("**/*.png"):
            if path.relative_to(photos).as_posix() not in left:
                path.unlink()
        index, _ = bring_up_to_date(out, model, system, photos)
        assert set(index.engine.fingerprints()) == left
    finally:
        subprocess.run(["umount", "--lazy", small_disk], check=True)


def test_another_model_or_collection(
    model: Path, system: System, photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "index"
    bring_up_to_date(out, model, system, photos)
    other = tmp_path / "other"
    shutil.copytree(model, other)
    with pytest.raises(ValueError, match=r"is an index of .*photos, not of .*other: index into"):
        create_index(out, model, system, photo_folder(_renamed(photos, "other photos, other")))
    weights = next(other.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-4] + b"\x01\x02\x03\x04")
    with pytest.raises(ValueError, match="is an index of another model"):
        create_index(out, other, system, photo_folder(_renamed(photos, "photos")))


def _renamed(photos: Path, name: str) -> Path:
    target = photos.parent / name
    if not target.exists():
        shutil.copytree(photos, target)
    return target


def test_a_model_that_was_moved_or_changed(
    model: Path, system: System, photos: Path, tmp_path: Path
) -> None:
    out, copy = tmp_path / "index", tmp_path / "copy"
    shutil.copytree(model, copy)
    bring_up_to_date(out, copy, system, photos)
    moved = copy.rename(tmp_path / "moved")
    with pytest.raises(ValueError, match=r"the model of .* is missing at .*copy: put it back"):
        open_searcher(out)
    _, outcome = bring_up_to_date(out, moved, system, photos)
    assert outcome == IndexUpdate(unchanged=10)
    assert open_searcher(out).index.record.model == str(moved)
    weights = next(moved.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-4] + b"\x01\x02\x03\x04")
    with pytest.raises(ValueError, match=r"is not the model that .* was made with"):
        open_searcher(out)


@pytest.mark.parametrize("text", ["", "{}", '{"format": 1}', "[]"])
def test_a_damaged_record(tmp_path: Path, text: str) -> None:
    (tmp_path / "index.json").write_text(text)
    said = r"index.json is damaged \([^(\n]{,60}\): delete the folder, or index into a new one$"
    with pytest.raises(ValueError, match=said):
        open_index(tmp_path)
    with pytest.raises(ValueError, match="is not an index: make an index with"):
        open_index(tmp_path / "index.json")
    with pytest.raises(
        ValueError, match=r"does not exist: make an index with `.*gradspace index MODEL"
    ):
        open_index(tmp_path / "none")


def test_vectors_of_nobody_knows_which_model(
    model: Path, system: System, photos: Path, tmp_path: Path
) -> None:
    index, _ = bring_up_to_date(tmp_path / "index", model, system, photos)
    (index.folder / "index.json").unlink()
    with pytest.raises(ValueError, match=r"index has vectors but no index.json.*into a new one"):
        bring_up_to_date(index.folder, model, system, photos)


def test_metadata_comes_changes_and_goes(
    model: Path, system: System, photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "index"
    bring_up_to_date(out, model, system, photos)
    facts = [tmp_path / "facts.csv", tmp_path / "renamed.csv"]
    facts[0].write_text("path,year\n000.png,2020\n")
    facts[1].write_text("path,year\n000.png,2021\n")
    for metadata, year in [(facts[0], 2020), (facts[1], 2021), (None, None)]:
        collection = photo_folder(photos, metadata)
        index = create_index(out, model, system, collection)
        assert update_index(index, collection, system) == IndexUpdate(changed=1, unchanged=9)
        [found] = open_index(out).engine.get(["000.png"])
        assert found is not None
        assert found[0].metadata.get("year") == year
        assert open_index(out).record.collection == collection.record


def test_an_index_of_the_same_folder_typed_otherwise(
    model: Path, system: System, photos: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(photos)
    index, _ = bring_up_to_date(tmp_path / "index", model, system, photos)
    record = index.folder / "index.json"
    record.write_text(record.read_text().replace(str(photos), f"{photos}/../link"))
    for typed in (photos, photos / ".." / "photos", tmp_path / "link"):
        _, outcome = bring_up_to_date(index.folder, model, system, typed)
        assert outcome == IndexUpdate(unchanged=10)


def test_a_damaged_index_is_known_when_it_is_opened(
    model: Path, system: System, photos: Path, tmp_path: Path
) -> None:
    index, _ = bring_up_to_date(tmp_path / "index", model, system, photos)
    vectors = next(index.folder.glob("segments/*/vectors.npy"))
    vectors.write_bytes(vectors.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"vectors.npy is damaged"):
        open_searcher(index.folder)


# --- searching ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def searcher(model: Path, system: System, tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    folder = tmp_path_factory.mktemp("searched")
    write_photos(folder / "photos", range(20))
    index, _ = bring_up_to_date(folder / "index", model, system, folder / "photos")
    return Searcher(index, system)


def test_by_sentence_by_picture_and_by_both(searcher: Searcher, system: System) -> None:
    picture = searcher.index.picture("below/003.png")
    queries = [
        Query("a red ball"),
        Query(picture=picture),
        Query("a red ball", picture, picture_weight=0.25),
        Query("a red ball", picture, picture_weight=0.0),
        Query(like="below/003.png"),
    ]
    text = embed_captions(system, ["a red ball"])[0].numpy()
    image = embed_pictures(system, [picture])[0].numpy()
    both = 0.75 * text + 0.25 * image
    expected = [text, image, both / np.linalg.norm(both), text, image]
    assert np.abs(searcher.embed(queries) - np.stack(expected)).max() < 1e-3
    found = searcher.search(queries, 5)
    assert [len(hits) for hits in found] == [5] * 5
    assert found[1][0].item.key == "below/003.png"
    assert found[1][0].score == pytest.approx(1, abs=1e-3)
    assert "below/003.png" not in {hit.item.key for hit in found[4]}
    assert [hit.item.key for hit in found[1][1:]] == [hit.item.key for hit in found[4][:4]]
    for hits in found:
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_with_conditions(searcher: Searcher) -> None:
    where = [parse_condition("folder=below"), parse_condition("width>=48")]
    [hits] = searcher.search([Query("anything")], 50, where=where)
    assert {hit.item.key for hit in hits} == {f"below/{n:03}.png" for n in range(1, 20, 2)}
    [nothing] = searcher.search([Query("anything")], where=[parse_condition("width>48")])
    assert nothing == []


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (Query(), "give a sentence, a picture, or an item"),
        (Query("  "), "give a sentence, a picture, or an item"),
        (Query(like="none.png"), "there is no item 'none.png' in index"),
        (Query("a", picture_weight=2), "picture_weight is 2; use 0 to 1"),
        (Query("\udcff\udcfe"), r"the query '\\udcff\\udcfe' is not valid UTF-8"),
        (Query(like="\udcff"), r"the query '\\udcff' is not valid UTF-8"),
    ],
)
def test_queries_that_are_none(searcher: Searcher, query: Query, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        searcher.search([query])


def test_what_an_index_does_not_hold(searcher: Searcher) -> None:
    with pytest.raises(ValueError, match="index has images only"):
        searcher.search([Query("a")], kind="caption")
    with pytest.raises(ValueError, match="k is 0; use at least 1"):
        searcher.search([Query("a")], 0)
    with pytest.raises(KeyError):
        searcher.index.picture("none.png")
    assert searcher.index.thumbnail("none.png") is None
    assert searcher.explain("000.png", "a red ball") is None, "CLIP cannot tell"
    with pytest.raises(KeyError):
        searcher.explain("none.png", "a red ball")


def test_a_photo_that_was_deleted(
    model: Path, system: System, photos: Path, tmp_path: Path
) -> None:
    """It is still found, shown by its thumbnail, and named where the photo itself is wanted."""
    index, _ = bring_up_to_date(tmp_path / "index", model, system, photos)
    (photos / "000.png").unlink()
    [hits] = Searcher(open_index(index.folder), system).search([Query("a")], 10)
    assert "000.png" in {hit.item.key for hit in hits}
    assert index.thumbnail("000.png") is not None
    with pytest.raises(ValueError, match=r"000.png"):
        open_index(index.folder).picture("000.png")


def test_captions_by_photo(model: Path, system: System, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("a red ball\ntwo blue stars\na small cube\n")
    collection = caption_file(tmp_path / "c.txt")
    index = create_index(tmp_path / "index", model, system, collection)
    assert update_index(index, collection, system) == IndexUpdate(added=3)
    assert index.kinds == ("caption",)
    with Image.open(photos / "000.png") as picture:
        query = Query(picture=picture.convert("RGB"))
    [hits] = Searcher(index, system).search([query], 2, "caption")
    vectors = (
        embed_captions(system, collection.split.captions)
        @ embed_pictures(system, [query.picture] if query.picture else []).t()
    )
    order = vectors[:, 0].argsort(descending=True)[:2].tolist()
    assert [hit.item.text for hit in hits] == [collection.split.captions[i] for i in order]
    with pytest.raises(ValueError, match="there are no pictures in this collection"):
        index.picture("a red ball")


def test_a_run_on_features_searches_its_own_dataset(tmp_path: Path) -> None:
    run = train_small(tmp_path / "run")
    data = run.recipe().data
    system = load_system(run.folder)
    collection = dataset_split(data, "dev")
    index = create_index(tmp_path / "index", run.folder, system, collection)
    outcome = update_index(index, collection, system)
    assert outcome.added == 40 + len(collection.split.captions)
    searcher = open_searcher(tmp_path / "index")
    assert not searcher.reads_pictures
    [images] = searcher.search([Query("a red ball")], 3)
    [captions] = searcher.search([Query(like=images[0].item.key)], 3, "caption")
    assert searcher.index.picture(captions[0].item.key).width > 50
    assert searcher.index.thumbnail(images[0].item.key) is not None
    explanation = searcher.explain(images[0].item.key, "a red ball")
    assert explanation is not None
    assert explanation.regions is not None
    assert explanation.score == pytest.approx(images[0].score, abs=1e-3)
    assert explanation.regions.sum() == pytest.approx(explanation.score, abs=1e-5)
    scan = train_small(tmp_path / "scan", model={"name": "scan"}, training={"epochs": 1})
    explained = open_searcher(tmp_path / "index", explainer=scan.folder).explain(
        images[0].item.key, "a red ball"
    )
    assert explained is not None
    assert [word for word, _ in explained.words] == ["a", "red", "ball"]
    assert explained.attention is not None
    with pytest.raises(ValueError, match="this run reads precomputed features, not pictures"):
        searcher.search([Query(picture=Image.new("RGB", (9, 9)))])
    write_photos(tmp_path / "photos", range(2))
    photos = photo_folder(tmp_path / "photos")
    with pytest.raises(ValueError, match="reads precomputed features, and there are only"):
        create_index(tmp_path / "other", run.folder, system, photos)
    assert not (tmp_path / "other").exists()


def test_a_dataset_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        dataset_split(DataRecipe(source=str(tmp_path / "none")), "test")


def test_the_grid_of_features_lies_on_the_picture(tmp_path: Path) -> None:
    """Cells of a backbone's grid, over the middle of a picture that is wider than high."""
    write_dataset(tmp_path / "data")
    dataset = open_dataset(tmp_path / "data")
    torch.manual_seed(0)
    extract_features(
        dataset,
        str(resnet(tmp_path / "backbone")),
        tmp_path / "grid",
        grid=True,
        batch_size=4,
        num_workers=0,
        device=torch.device("cpu"),
    )
    data = {"source": str(tmp_path / "data"), "features": str(tmp_path / "grid")}
    recipe = make_recipe(
        {
            "data": data,
            "model": {"name": "vse-infinity", "width": 16, "word_width": 8},
            "training": {"epochs": 1, "batch_size": 4},
        }
    )
    run = create_run(tmp_path / "run", recipe)
    system = new_system(recipe, open_recipe(recipe.data), run, torch.device("cpu"))
    with Monitor(None, 0) as monitor:
        train_run(recipe, open_recipe(recipe.data), system, run, monitor)
    collection = dataset_split(recipe.data, "test")
    index = create_index(tmp_path / "index", run.folder, system, collection)
    update_index(index, collection, system)
    searcher = open_searcher(tmp_path / "index")
    explanation = searcher.explain("0.png", "a picture of colour 3")
    assert explanation is not None
    assert explanation.regions is not None
    assert explanation.regions.shape[0] == explanation.regions.shape[1] > 1
    assert explanation.words[0][0] == "a"
    assert explanation.box == pytest.approx((0.5 - 7 / 32, 1 / 16, 0.5 + 7 / 32, 15 / 16), abs=0.01)


def write_dataset(folder: Path) -> None:
    (folder / "images").mkdir(parents=True)
    rows = ["image\tcaption"]
    for number in range(12):
        Image.new("RGB", (80, 40), (20 * number, 255 - 20 * number, 100)).save(
            folder / "images" / f"{number}.png"
        )
        rows.append(f"{number}.png\ta picture of colour {number}")
    (folder / "captions.tsv").write_text("\n".join(rows) + "\n")
    for start, name in ((0, "test"), (2, "dev"), (4, "train")):
        names = [f"{number}.png\n" for number in range(start, start + (8 if start == 4 else 2))]
        (folder / f"{name}.txt").write_text("".join(names))
