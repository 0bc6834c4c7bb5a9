from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from models import published_xvlm, tiny
from torch import Tensor

import gradspace as gs
from gradspace.models import ImageInput, TextInput, build_model, models
from gradspace.models.encoders import Encoders
from gradspace.models.fusion import Fusion
from gradspace.models.matching import draw_pairs, matching_loss
from gradspace.models.temperature import with_learned_scale
from gradspace.models.text import TextNetwork

REGIONS, WORDS = ImageInput(shape=(5, 6)), TextInput(vocabulary_size=9)


def small(**parameters: Any) -> Fusion:
    torch.manual_seed(0)
    return Fusion(REGIONS, WORDS, encoders=Encoders(width=8, word_width=4), **parameters)


def without_dropout(model: Fusion) -> Fusion:
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return model


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("networks")
    return tiny.swin(root / "swin"), tiny.bert(root / "bert")


def test_has_the_published_sizes() -> None:
    (info,) = (info for info in models() if info.name == "fusion")
    expected = {"width": 256, "temperature": 0.07, "itm_weight": 1.0, "num_fusion_layers": None}
    assert expected.items() <= info.parameters.items()
    assert info.training["optimizer"] == "adamw"


def test_options_are_checked_by_name() -> None:
    inputs: Any = {"image_input": REGIONS, "text_input": WORDS}
    with pytest.raises(ValueError, match="temperature of fusion should be greater than 0, got 0"):
        build_model("fusion", **inputs, temperature=0.0)
    with pytest.raises(ValueError, match="fusion has no parameter 'itm_wheight'; did you mean"):
        build_model("fusion", **inputs, itm_wheight=1.0)


# --- the loss of pairs ----------------------------------------------------------------------------


def test_extra_loss_is_that_of_the_drawn_pairs() -> None:
    """With equal ids, and handed over once."""
    model = without_dropout(small(itm_weight=0.5))
    images = torch.randn(3, 5, 6)
    tokens, lengths = tiny.captions(4, 9)
    image_of_text, ids = torch.tensor([0, 1, 2, 2]), torch.tensor([8, 5, 8])
    torch.manual_seed(1)
    found = model(images, tokens, lengths, image_of_text, ids)
    loss = model.extra_loss()
    assert loss is not None
    assert model.extra_loss() is None
    torch.manual_seed(1)
    pairs = draw_pairs((found[0] @ found[1].t()).detach(), image_of_text, ids, model.temperature)
    regions, words = model.parts_of_images(images), model.parts_of_texts(tokens, lengths)
    each = [
        model.score_pairs(regions[i : i + 1], words[t : t + 1], lengths[t : t + 1])
        for i, t in zip(pairs.images.tolist(), pairs.texts.tolist(), strict=True)
    ]
    torch.testing.assert_close(loss, 0.5 * matching_loss(torch.cat(each), pairs))


def test_there_is_no_extra_loss_in_evaluation_or_of_weight_zero() -> None:
    batch = torch.randn(3, 5, 6), *tiny.captions(3, 9)
    for model in (small().eval(), small(itm_weight=0.0)):
        model(*batch)
        assert model.extra_loss() is None


def test_texts_and_images_must_be_told_together() -> None:
    with pytest.raises(ValueError, match="4 texts for 2 images: fusion needs image_of_text"):
        small()(torch.randn(2, 5, 6), *tiny.captions(4, 9))


def test_gradients_of_the_loss_reach_both_encoders() -> None:
    model = small()
    model(torch.randn(3, 5, 6), *tiny.captions(3, 9))
    loss = model.extra_loss()
    assert loss is not None
    torch.autograd.backward(loss)
    assert isinstance(model.texts.gru, torch.nn.GRU)
    assert model.texts.gru.weight_hh_l0.grad is not None
    layer: Any = model.fusion[0]
    assert layer.crossattention.self.key.weight.grad is not None
    assert model.image_projection.weight.grad is None  # nothing flows through the draw


# --- scores of pairs ------------------------------------------------------------------------------


def test_a_score_depends_on_its_pair_alone() -> None:
    """Not on the padding, and on every word: also on those after the first, in any order."""
    model = small().double().eval()
    images = torch.randn(3, 5, 6, dtype=torch.float64)
    tokens, lengths = tiny.captions(3, 9)
    regions, words = model.parts_of_images(images), model.parts_of_texts(tokens, lengths)
    scores = model.score_pairs(regions, words, lengths)
    assert scores.dtype == torch.float64
    padded = torch.nn.functional.pad(words, (0, 0, 0, 3), value=7.0)
    torch.testing.assert_close(model.score_pairs(regions, padded, lengths), scores)
    torch.testing.assert_close(model.score(regions, words, lengths).diagonal(), scores)
    changed = words.clone()
    changed[0, int(lengths[0]) - 1] += 1
    assert model.score_pairs(regions, changed, lengths)[0] != scores[0]
    regions[1, -1] += 1
    assert model.score_pairs(regions, words, lengths)[1] != scores[1]


def test_half_precision_scores_are_float32() -> None:
    model = small().eval()
    tokens, lengths = tiny.captions(2, 9)
    with torch.autocast("cpu", torch.bfloat16):
        words = model.parts_of_texts(tokens, lengths)
        scores = model.score_pairs(model.parts_of_images(torch.randn(2, 5, 6)), words, lengths)
    assert scores.dtype == torch.float32


# --- BERT -----------------------------------------------------------------------------------------


def with_networks(networks: tuple[Path, Path], **parameters: Any) -> Fusion:
    torch.manual_seed(0)
    image_input = ImageInput(backbone=networks[0])
    return Fusion(
        image_input, TextInput(encoder=networks[1]), encoders=Encoders(width=12), **parameters
    )


def test_the_upper_layers_of_bert_are_the_fusion(networks: tuple[Path, Path]) -> None:
    """What they had learnt is kept, and what reads the text is as long as BERT without them."""
    from transformers import BertModel

    bert = BertModel.from_pretrained(networks[1]).eval()
    model = with_networks(networks).eval()
    assert isinstance(model.texts, TextNetwork)
    assert len(model.texts.network.encoder.layer) == len(model.fusion) == 1
    for name, value in bert.encoder.layer[1].state_dict().items():
        assert torch.equal(model.fusion[0].state_dict()[name], value)
    tokens, lengths = tiny.captions(3, 11)
    mask = (torch.arange(tokens.shape[1]) < lengths[:, None]).long()
    output = bert(input_ids=tokens, attention_mask=mask, output_hidden_states=True)
    torch.testing.assert_close(
        model.parts_of_texts(tokens, lengths), output.hidden_states[1] * mask[..., None]
    )


def test_words_see_all_words(networks: tuple[Path, Path]) -> None:
    """Without an image the fusion would be the rest of BERT: no word is hidden from another."""
    from transformers import BertModel

    bert = BertModel.from_pretrained(networks[1]).eval()
    model = with_networks(networks).eval()
    layer: Any = model.fusion[0]
    torch.nn.init.zeros_(layer.crossattention.output.dense.weight)
    layer.crossattention.output.LayerNorm = torch.nn.Identity()
    tokens, lengths = tiny.captions(3, 11)
    mask = torch.arange(tokens.shape[1]) < lengths[:, None]
    words = model.parts_of_texts(tokens, lengths)
    found = model.fusion(words, mask, torch.randn(3, 4, model.images.width))
    expected = bert(input_ids=tokens, attention_mask=mask.long()).last_hidden_state
    torch.testing.assert_close(found[mask], expected[mask])


def test_refuses_what_has_no_layers_to_give(networks: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="num_fusion_layers is 2, but the text encoder has 2 lay"):
        with_networks(networks, num_fusion_layers=2)
    clip = TextInput(encoder=tiny.clip(tmp_path / "clip"))
    with pytest.raises(ValueError, match="from a BERT, but the text encoder is a CLIPTextModel"):
        Fusion(REGIONS, clip)


# --- published weights ----------------------------------------------------------------------------


def published(networks: tuple[Path, Path]) -> dict[str, Tensor]:
    """A Swin and a BERT of their own random weights, with cross-attention in the upper layer."""
    from transformers import BertModel, SwinModel

    torch.manual_seed(5)
    swin = SwinModel(SwinModel.from_pretrained(networks[0]).config, add_pooling_layer=False)
    config = BertModel.from_pretrained(networks[1]).config
    config.is_decoder = config.add_cross_attention = True
    state = BertModel(config, add_pooling_layer=False).state_dict()
    state = {k: torch.randn_like(v) for k, v in state.items() if "layer.0.cross" not in k}
    for kind in ("key", "value"):
        name = f"encoder.layer.1.crossattention.self.{kind}.weight"
        state[name] = torch.randn(16, swin.num_features)
    vision = {name: torch.randn_like(value) for name, value in swin.state_dict().items()}
    return {
        **published_xvlm.from_bert(state),
        **published_xvlm.from_swin(vision),
        **published_xvlm.with_heads(16, swin.num_features, 12),
    }


UNUSED = {
    "text_encoder.bert.embeddings.position_ids": torch.arange(16),
    "text_encoder.cls.predictions.bias": torch.zeros(11),
    "bbox_head.0.weight": torch.zeros(4, 4),
    "vision_encoder.layers.0.blocks.0.attn.relative_position_index": torch.zeros(16, 16),
}


def test_published_weights_go_where_they_belong(
    networks: tuple[Path, Path], tmp_path: Path
) -> None:
    tensors = published(networks)
    path = published_xvlm.save(tmp_path / "xvlm.safetensors", {**tensors, **UNUSED})
    model = with_networks(networks, weights=str(path))
    state = model.state_dict()
    same = {
        "temperature": "temp",
        "image_projection.weight": "vision_proj.weight",
        "text_projection.bias": "text_proj.bias",
        "matching_head.3.weight": "itm_head.3.weight",
        "texts.network.embeddings.word_embeddings.weight": (
            "text_encoder.bert.embeddings.word_embeddings.weight"
        ),
        "texts.network.encoder.layer.0.attention.self.query.weight": (
            "text_encoder.bert.encoder.layer.0.attention.self.query.weight"
        ),
        "fusion.0.crossattention.self.value.weight": (
            "text_encoder.bert.encoder.layer.1.crossattention.self.value.weight"
        ),
        "fusion.0.output.dense.bias": "text_encoder.bert.encoder.layer.1.output.dense.bias",
        "images.network.layernorm.weight": "vision_encoder.norm.weight",
        "images.network.encoder.layers.0.downsample.reduction.weight": (
            "vision_encoder.layers.0.downsample.reduction.weight"
        ),
    }
    for ours, theirs in same.items():
        assert torch.equal(state[ours], tensors[theirs]), ours
    network: Any = model.images.network
    again = published_xvlm.from_swin(network.state_dict())
    assert again.keys() == {name for name in tensors if name.startswith("vision_encoder.")}
    assert all(torch.equal(again[name], tensors[name]) for name in again)


def test_fine_tuned_weights_have_no_bert_in_their_names(
    networks: tuple[Path, Path], tmp_path: Path
) -> None:
    tensors = {k.replace(".bert.", "."): v for k, v in published(networks).items()}
    path = published_xvlm.save(tmp_path / "xvlm.safetensors", tensors)
    model = with_networks(networks, weights=str(path))
    found = model.state_dict()["matching_head.0.weight"]
    assert torch.equal(found, tensors["itm_head.0.weight"])


def test_what_does_not_fit_is_named(networks: tuple[Path, Path], tmp_path: Path) -> None:
    tensors = published(networks)
    lacking = {k: v for k, v in tensors.items() if k not in ("itm_head.0.bias", "temp")}
    path = published_xvlm.save(
        tmp_path / "a.safetensors", {**lacking, "idm_head.0.bias": torch.zeros(1)}
    )
    expected = (
        "does not fit the model: it lacks itm_head.0.bias, temp; it has, unlike the model, "
        "idm_head.0.bias$"
    )
    with pytest.raises(ValueError, match=expected):
        with_networks(networks, weights=str(path))
    path = published_xvlm.save(
        tmp_path / "b.safetensors", {**tensors, "text_proj.bias": torch.zeros(3)}
    )
    with pytest.raises(ValueError, match=r"text_proj.bias of .* is \[3\], but the model's text_pr"):
        with_networks(networks, weights=str(path))


def test_a_run_is_built_again_without_the_file(networks: tuple[Path, Path]) -> None:
    """Its checkpoint has the weights."""
    image_input = ImageInput(backbone=networks[0], pretrained=False)
    text_input = TextInput(encoder=networks[1], pretrained=False)
    Fusion(image_input, text_input, weights="gone.safetensors")
    with pytest.raises(ValueError, match=r"weights needs a Swin as model.backbone and a BERT"):
        Fusion(REGIONS, WORDS, weights="gone.safetensors")


def test_pickled_weights_are_refused(networks: tuple[Path, Path], tmp_path: Path) -> None:
    torch.save({"model": {}}, tmp_path / "xvlm.pth")
    with pytest.raises(ValueError, match=r"not a .safetensors file; .* weights_only=True"):
        with_networks(networks, weights=str(tmp_path / "xvlm.pth"))
    (tmp_path / "broken.safetensors").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"cannot read .*broken"):
        with_networks(networks, weights=str(tmp_path / "broken.safetensors"))


def test_the_head_and_the_temperature_have_rates_of_their_own() -> None:
    model = small(head_rate=2.0, learn_temperature=True)
    groups = {group["name"]: group for group in model.parameter_groups(0.5)}
    assert {name: group["lr"] for name, group in groups.items()} == {
        "new": 0.5,
        "head": 1.0,
        "temperature": 0.5,
    }
    assert groups["temperature"]["weight_decay"] == 0
    assert groups["temperature"]["params"] == [model.temperature]
    listed = [each for group in groups.values() for each in group["params"]]
    assert len(listed) == len(set(listed)) == len(list(model.parameters()))
    assert [group["name"] for group in small().parameter_groups(0.5)] == ["new"], "as in old runs"
    assert small().state_dict().keys() == model.state_dict().keys(), "whose weights fit"


def test_a_learned_temperature_gets_the_gradient_of_nt_xent() -> None:
    torch.manual_seed(0)
    model = small(learn_temperature=True).train()
    assert small().learned_scale() is None
    images, texts = model(torch.randn(4, 5, 6), torch.randint(1, 9, (4, 5)), torch.full((4,), 5))
    objective = gs.objective("nt-xent", temperature=1.0)
    learned = model.learned_scale()
    assert learned is not None
    seen = with_learned_scale(objective, images, texts, learned)
    gs.RetrievalLoss(objective, normalize=False)(*seen).backward()
    scores = (images @ texts.t()).detach().double()

    def loss(temperature: float) -> float:
        logits = scores / temperature
        rows = [logits.logsumexp(way).mean() for way in (0, 1)]
        return float(sum(rows) / 2 - logits.diag().mean())

    step = 1e-6
    expected = (loss(0.07 + step) - loss(0.07 - step)) / (2 * step)
    assert model.temperature.grad is not None
    assert model.temperature.grad.item() == pytest.approx(expected, rel=1e-3)
