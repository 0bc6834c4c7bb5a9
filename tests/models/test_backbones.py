from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from models import tiny
from torch import Tensor

from gradspace.models.backbones import Backbone, Preprocessing, load_preprocessing

RESNET50 = Path(__file__).parents[3] / "shared" / "resnet50"


@pytest.fixture(params=tiny.VISION)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(kind: str, tmp_path: Path) -> Path:
    return tiny.VISION[kind](tmp_path)


def statistics(backbone: Backbone) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in backbone.state_dict().items()}


def changed(before: dict[str, Tensor], backbone: Backbone) -> set[str]:
    after = backbone.state_dict()
    return {name for name in before if not torch.equal(before[name], after[name])}


def take_a_step(backbone: Backbone) -> None:
    backbone.train()
    parameters = [p for p in backbone.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD([*parameters, torch.zeros(1, requires_grad=True)], lr=0.1)
    loss = (backbone(tiny.pictures(3)) ** 2).mean()
    if loss.requires_grad:
        loss.backward()
    optimizer.step()


def test_pooled_and_grid(kind: str, folder: Path) -> None:
    pixels = tiny.pictures(2)
    pooled, grid = Backbone(folder).eval(), Backbone(folder, grid=True).eval()
    assert pooled(pixels).shape == (2, pooled.width)
    assert grid(pixels).shape == (2, tiny.NUM_CELLS[kind], grid.width)
    if kind in ("resnet", "swin"):
        torch.testing.assert_close(grid(pixels).mean(1), pooled(pixels))


def test_a_grid_is_the_networks_map_or_patches(kind: str, folder: Path) -> None:
    backbone = Backbone(folder, grid=True).eval()
    pixels = torch.randn(2, 3, tiny.SIDE, tiny.SIDE)
    hidden = backbone.network(pixel_values=pixels).last_hidden_state
    cell = backbone(pixels)[:, 5]
    if hidden.dim() == 4:
        assert torch.equal(cell, hidden[:, :, 1, 1]), "row by row, four cells a row"
    else:
        has_class_token = kind in ("vit", "clip", "dinov2")
        assert torch.equal(cell, hidden[:, 5 + has_class_token])


def test_one_vector_of_a_classifier_is_its_class_token(tmp_path: Path) -> None:
    backbone = Backbone(tiny.vit(tmp_path)).eval()
    pixels = torch.randn(2, 3, tiny.SIDE, tiny.SIDE)
    hidden = backbone.network(pixel_values=pixels).last_hidden_state
    assert torch.equal(backbone(pixels), hidden[:, 0])


def test_frozen_means_frozen(folder: Path) -> None:
    backbone = Backbone(folder)
    before = statistics(backbone)
    take_a_step(backbone)
    assert not changed(before, backbone)
    assert not any(parameter.requires_grad for parameter in backbone.parameters())
    assert not any(module.training for module in backbone.network.modules())
    pixels = torch.randn(1, 3, tiny.SIDE, tiny.SIDE, requires_grad=True)
    assert not backbone(pixels).requires_grad


@pytest.mark.parametrize("grid", [False, True])
def test_fine_tuned_means_that_every_trainable_parameter_moves(folder: Path, grid: bool) -> None:
    backbone = Backbone(folder, grid=grid, fine_tune=True)
    before = statistics(backbone)
    take_a_step(backbone)
    trainable = {name for name, p in backbone.named_parameters() if p.requires_grad}
    assert all(p.grad is not None for p in backbone.parameters() if p.requires_grad)
    assert len(trainable) > 0.5 * len(list(backbone.parameters()))
    unmoved = trainable - changed(before, backbone)
    # Biases inside attention may get a gradient of zero, or one that rounds away.
    assert all(name.endswith(".bias") and "att" in name for name in unmoved), unmoved


def test_batch_norm_statistics_are_kept_on_request(tmp_path: Path) -> None:
    tiny.resnet(tmp_path)
    for freeze in (False, True):
        backbone = Backbone(tmp_path, fine_tune=True, freeze_batch_norm=freeze)
        before = statistics(backbone)
        take_a_step(backbone)
        moved = changed(before, backbone)
        assert any("running_mean" in name for name in moved) is not freeze
        assert any(name.endswith("normalization.weight") for name in moved)


def test_switching_between_frozen_and_fine_tuned(tmp_path: Path) -> None:
    backbone = Backbone(tiny.resnet(tmp_path)).train().double()
    backbone.fine_tune(True)
    assert backbone.network.training
    assert backbone(tiny.pictures(2)).requires_grad
    backbone.fine_tune(False)
    assert not backbone.network.training
    assert not backbone(tiny.pictures(2)).requires_grad


def test_pixels_are_normalised_as_the_folder_says(tmp_path: Path) -> None:
    backbone = Backbone(tiny.resnet(tmp_path)).eval()
    assert backbone.preprocessing == Preprocessing(tiny.MEAN, tiny.STD, tiny.SIDE)
    pixels = tiny.pictures(2)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (tiny.MEAN, tiny.STD))
    torch.testing.assert_close(backbone(pixels), backbone((pixels / 255 - mean) / std))


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ({"size": 48}, 48),
        ({"size": {"height": 40, "width": 40}}, 40),
        ({"size": {"shortest_edge": 64}, "crop_size": {"height": 56, "width": 56}}, 56),
    ],
)
def test_sizes_as_image_processors_write_them(
    tmp_path: Path, given: dict[str, object], size: int
) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(given))
    found = load_preprocessing(tmp_path)
    assert found == Preprocessing((0.0,) * 3, (1.0,) * 3, size)


def test_a_folder_without_preprocessing_takes_normalised_pixels_only(tmp_path: Path) -> None:
    tiny.resnet(tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    backbone = Backbone(tmp_path)
    assert backbone(torch.randn(1, 3, 32, 32)).shape == (1, 16)
    with pytest.raises(ValueError, match="uint8 pixels cannot be normalised: add the file"):
        backbone(tiny.pictures(1))


def test_larger_pictures_give_larger_grids(kind: str, folder: Path) -> None:
    grid = Backbone(folder, grid=True)(torch.randn(1, 3, 2 * tiny.SIDE, tiny.SIDE))
    assert grid.shape[1] == 2 * tiny.NUM_CELLS[kind]


def test_structure_without_weights_is_built_from_what_was_saved(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As a run does it: configurations in its folder, the weights in its checkpoint."""
    saved = tmp_path_factory.mktemp("saved")
    backbone = Backbone(folder).eval()
    backbone.save_config(saved)
    again = Backbone(saved, pretrained=False).eval()
    again.load_state_dict(backbone.state_dict())
    assert again.preprocessing == backbone.preprocessing
    assert torch.equal(again(tiny.pictures(2)), backbone(tiny.pictures(2)))


def test_loading_is_silent(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Backbone(folder, fine_tune=True)
    assert capfd.readouterr() == ("", "")


def test_pixels_of_the_wrong_shape(tmp_path: Path) -> None:
    backbone = Backbone(tiny.resnet(tmp_path))
    with pytest.raises(
        ValueError, match=r"expected pixels \[images, 3, h, w\], got shape \[2, 4\]"
    ):
        backbone(torch.zeros(2, 4))


def test_a_missing_folder_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere does not exist: expected the folder of"):
        Backbone(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"nowhere/at/all does not exist: expected the folder of"):
        Backbone("nowhere/at/all")


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no config.json: transformers did not save"):
        Backbone(tmp_path)


def test_a_text_network_is_no_backbone(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a BertModel, which takes input_ids: it is not a vis"):
        Backbone(tiny.bert(tmp_path))


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    tiny.resnet(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(
        ValueError, match=r"only pickled weights \(pytorch_model.bin\), which can r"
    ):
        Backbone(tmp_path)


def test_missing_weights_are_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tiny.resnet(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["embedder.embedder.convolution.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="lacks 1 weights of a ResNetModel: embedder"):
        Backbone(tmp_path)


def test_an_unreachable_hub_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoConfig

    def fail(name: str, **options: object) -> None:
        raise OSError(f"We couldn't connect to the hub for {name}.\nCheck your connection.")

    monkeypatch.setattr(AutoConfig, "from_pretrained", fail)
    with pytest.raises(
        ValueError,
        match=r"some/name does not exist as a folder and cannot be loaded from the hub: We .*e\.$",
    ):
        Backbone("some/name")


@pytest.mark.skipif(not RESNET50.is_dir(), reason="no ../shared/resnet50")
@pytest.mark.slow
def test_resnet50(tmp_path: Path) -> None:
    subprocess.run([sys.executable, RESNET50 / "unpack.py", tmp_path], check=True)
    backbone = Backbone(tmp_path, grid=True)
    assert backbone.preprocessing is not None
    assert backbone.preprocessing.size == 224
    assert backbone.preprocessing.image_std == pytest.approx((1 / 255,) * 3)
    grid = backbone(torch.randint(256, (2, 3, 224, 224), dtype=torch.uint8))
    assert grid.shape == (2, 49, 2048)
    assert grid.isfinite().all()
