"""The dataset as a whole: determinism, images, regions, parameters."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gradspace.data.scenes import Scenes, contact_sheet
from gradspace.data.scenes import dataset as dataset_module
from gradspace.data.scenes.regions import region_features
from gradspace.data.scenes.world import COLOURS, SHAPES

SOURCE = Path(dataset_module.__file__).parents[3]


def digest(scenes: Scenes, indices: list[int]) -> str:
    """A hash of everything that the items hold, in the order of `indices`."""
    parts = []
    for i in indices:
        texts = "|".join(caption.text for caption in scenes.captions(i))
        parts.append(f"{i}{scenes.scene(i)}{texts}".encode())
        parts.append(scenes.image(i).tobytes() + scenes.regions(i).tobytes())
    return hashlib.sha256(b"".join(parts)).hexdigest()


@pytest.mark.slow
def test_another_process_makes_the_same_items_in_any_order() -> None:
    script = (
        f"import sys; sys.path[:0] = [{str(SOURCE)!r}, {str(Path(__file__).parent)!r}];"
        "from test_scenes import Scenes, digest; s = Scenes(num_images=9, seed=5);"
        "s.image(8); s.captions(3); print(digest(s, [0, 3, 7]))"
    )
    run = [sys.executable, "-c", script]
    other = subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()
    assert digest(Scenes(num_images=9, seed=5), [0, 3, 7]) == other


def test_items_of_this_version_stay_as_they_are() -> None:
    """When this fails on purpose, raise VERSION and write the new hash here."""
    texts = [caption.text for i in range(40) for caption in Scenes().captions(i)]
    found = hashlib.sha256("|".join(texts).encode()).hexdigest()[:16]
    assert (dataset_module.VERSION, found) == (1, "de10a3d7683e7f08")


def test_a_larger_dataset_begins_with_the_smaller_one() -> None:
    indices = list(range(4))
    assert digest(Scenes(num_images=4), indices) == digest(Scenes(num_images=40), indices)


@pytest.mark.parametrize("other", [Scenes(seed=1), Scenes(split="dev"), Scenes(split="test")])
def test_seeds_and_splits_differ(other: Scenes) -> None:
    assert Scenes().scene(0) != other.scene(0)
    assert Scenes().fingerprint != other.fingerprint


def test_fingerprint_tells_every_parameter_and_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    changes: list[dict[str, int | float]] = [
        {"num_images": 3},
        {"image_size": 160},
        {"num_regions": 5},
        {"dimension": 7},
        {"noise": 0.5},
    ]
    prints = {Scenes(**change).fingerprint for change in changes}  # type: ignore[arg-type]
    prints.add(Scenes().fingerprint)
    monkeypatch.setattr(dataset_module, "VERSION", 10**6)
    prints.add(Scenes().fingerprint)
    assert len(prints) == len(changes) + 2


@pytest.mark.parametrize("size", [128, 200])
def test_images_are_square_rgb_and_all_different(size: int) -> None:
    scenes = Scenes(num_images=20, image_size=size)
    images = [scenes.image(i) for i in range(20)]
    assert {image.mode for image in images} == {"RGB"}
    assert {image.size for image in images} == {(size, size)}
    assert len({image.tobytes() for image in images}) == 20
    assert all(np.asarray(image).std() > 5 for image in images)


def test_objects_are_drawn_inside_the_picture_in_their_colour() -> None:
    scenes = Scenes(num_images=200)
    for i in range(200):
        for group in scenes.scene(i).groups:
            assert all(-0.03 <= edge <= 1.03 for edge in group.box)
    checked = 0
    for i in range(60):
        pixels = np.asarray(scenes.image(i)).astype(int)
        for group in scenes.scene(i).groups:
            if group.pattern == "plain" and group.shape == "ball" and group.colour == "blue":
                x, y = (int(128 * at) for at in group.positions[0])
                assert pixels[y, x, 2] == pixels[y, x].max()
                checked += 1
    assert checked > 0


def test_contact_sheet_holds_pictures_and_text() -> None:
    sheet = contact_sheet(Scenes(num_images=5), num=5, columns=3)
    assert sheet.mode == "RGB"
    assert sheet.width > 3 * 256
    assert sheet.height > 2 * 256
    with pytest.raises(ValueError, match="columns is 0"):
        contact_sheet(Scenes(), columns=0)


def all_regions(scenes: Scenes) -> NDArray[np.float32]:
    return np.stack([scenes.regions(i) for i in range(len(scenes))])


@pytest.mark.parametrize(("num_regions", "dimension"), [(12, 128), (1, 8), (36, 256)])
def test_regions_are_finite_non_negative_floats(num_regions: int, dimension: int) -> None:
    scenes = Scenes(num_images=30, num_regions=num_regions, dimension=dimension)
    regions = all_regions(scenes)
    assert regions.shape == (30, num_regions, dimension)
    assert regions.dtype == np.float32
    assert np.isfinite(regions).all()
    assert regions.min() >= 0
    assert regions.std() > 0.1


def closeness(noise: float) -> float:
    """Similarity of the two halves of a scene's regions, minus that to other scenes."""
    regions = all_regions(Scenes(num_images=200, num_regions=24, noise=noise))
    halves = [half.mean(axis=1) for half in (regions[:, :12], regions[:, 12:])]
    halves = [half - half.mean(axis=0) for half in halves]
    first, second = (half / np.linalg.norm(half, axis=1, keepdims=True) for half in halves)
    similarity = first @ second.T
    return float(similarity.diagonal().mean() - similarity[~np.eye(200, dtype=bool)].mean())


def test_regions_of_one_scene_are_close_and_noise_parts_them() -> None:
    assert closeness(Scenes().noise) > 0.3
    assert closeness(0.0) > closeness(0.5) + 0.1


def test_noise_moves_every_region() -> None:
    """A single region shows the backdrop: always the same without noise, never with it."""
    for noise, num_different in ((0.0, 1), (0.15, 50)):
        rngs = [np.random.default_rng(i) for i in range(50)]
        regions = [region_features(Scenes().scene(0), 1, 16, noise, rng) for rng in rngs]
        assert len({region.tobytes() for region in regions}) == num_different


@pytest.mark.parametrize(("attribute", "values"), [("shape", SHAPES), ("colour", COLOURS)])
def test_a_linear_probe_recovers_attributes_but_not_perfectly(
    attribute: str, values: tuple[str, ...]
) -> None:
    def data(split: str, num_images: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        scenes = Scenes(split=split, num_images=num_images)
        present = [
            {getattr(g, attribute) for g in scenes.scene(i).groups} for i in range(num_images)
        ]
        return all_regions(scenes).mean(axis=1), np.array(
            [[v in p for v in values] for p in present]
        )

    (x, y), (x_test, y_test) = data("train", 800), data("test", 400)
    centre = x.mean(axis=0)
    x, x_test = x - centre, x_test - centre
    ridge = np.eye(x.shape[1]) * len(x) * 0.001
    weights = np.linalg.solve(x.T @ x + ridge, x.T @ (y - y.mean(axis=0)))
    correct = (x_test @ weights + y.mean(axis=0) > 0.5) == y_test
    always_absent = 1 - y_test.mean()
    assert always_absent + 0.08 < correct.mean() < 0.99


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"split": "val"}, "split is 'val'; use one of train, dev, test"),
        ({"num_images": 0}, "num_images is 0; use 1 or more"),
        ({"seed": -1}, "seed is -1; use 0 or more"),
        ({"image_size": 64}, "image_size is 64; use 128 or more"),
        ({"num_regions": 0}, "num_regions is 0; use 1 or more"),
        ({"dimension": 0}, "dimension is 0; use 1 or more"),
        ({"noise": -0.1}, "noise is -0.1; use a number from 0 to 1"),
        ({"noise": float("nan")}, "noise is nan; use a number from 0 to 1"),
    ],
)
def test_bad_parameters_are_refused(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Scenes(**parameters)  # type: ignore[arg-type]


@pytest.mark.parametrize("index", [-1, 3])
def test_indices_outside_are_refused(index: int) -> None:
    with pytest.raises(IndexError, match="use 0 to 2"):
        Scenes(num_images=3).scene(index)
