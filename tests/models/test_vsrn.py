from __future__ import annotations

import math

import pytest
import torch
from models import loops, tiny

from gradspace.models import ImageInput, TextInput, models
from gradspace.models.captioning import CaptionDecoder
from gradspace.models.encoders import Encoders
from gradspace.models.gcn import GCNBlock
from gradspace.models.vsrn import VSRN

REGIONS, WORDS = ImageInput(shape=(5, 6)), TextInput(vocabulary_size=9)


def test_images_are_the_equation() -> None:
    """Unit channels, blocks, unit channels again, a GRU from the first to the last, BatchNorm."""
    torch.manual_seed(0)
    encoders = Encoders(width=4)
    model = VSRN(REGIONS, WORDS, encoders=encoders, num_blocks=2, first_norm=True).double().eval()
    for block in model.blocks:
        assert isinstance(block, GCNBlock)
        torch.nn.init.normal_(block.norm.weight)
    assert model.norm is not None
    means, variances = model.norm.running_mean, model.norm.running_var
    assert means is not None
    assert variances is not None
    torch.nn.init.normal_(means)
    torch.nn.init.uniform_(variances, 0.5, 2)
    images = torch.randn(3, 5, 6, dtype=torch.float64)
    regions = [
        unit_channels([loops.linear(model.project, row) for row in loops.matrix(image)])
        for image in images
    ]
    for block in model.blocks:
        regions = loops.gcn(block, regions, training=False)
    for rows, embedding in zip(regions, model.embed_images(images), strict=True):
        read = loops.gru(model.reader, unit_channels(rows))
        statistics = zip(read[-1], loops.floats(means), loops.floats(variances), strict=True)
        normed = [(x - mean) / math.sqrt(var + 1e-5) for x, mean, var in statistics]
        expected = torch.tensor(loops.unit(normed), dtype=torch.float64)
        torch.testing.assert_close(embedding, expected)


def unit_channels(regions: loops.Matrix) -> loops.Matrix:
    """Every channel of length 1 over the regions."""
    channels = [loops.unit(list(channel)) for channel in zip(*regions, strict=True)]
    return [list(region) for region in zip(*channels, strict=True)]


def test_longest_last_reads_regions_by_their_length() -> None:
    torch.manual_seed(0)
    published = VSRN(REGIONS, WORDS, encoders=Encoders(width=4)).eval()
    model = VSRN(REGIONS, WORDS, encoders=Encoders(width=4), longest_last=True).eval()
    model.load_state_dict(published.state_dict())
    images = torch.randn(3, 5, 6)
    by_length = [sorted(image, key=lambda region: float(region.norm())) for image in images]
    in_order = torch.stack([torch.stack(regions) for regions in by_length])
    torch.testing.assert_close(model.embed_images(images), published.embed_images(in_order))
    shuffled = images[:, torch.randperm(5)]
    torch.testing.assert_close(model.embed_images(shuffled), model.embed_images(images))
    assert not published.embed_images(in_order).allclose(published.embed_images(images))


@pytest.mark.parametrize("first_norm", [False, True])
def test_images_of_a_new_model_are_alike_without_a_batch_norm(first_norm: bool) -> None:
    torch.manual_seed(0)
    images = torch.rand(32, 9, 64)
    for batch_norm in (True, False):
        model = VSRN(
            ImageInput(shape=(9, 64)),
            WORDS,
            encoders=Encoders(width=128),
            first_norm=first_norm,
            batch_norm=batch_norm,
        )
        found = model.embed_images(images).detach()
        cosine = float((found @ found.t()).fill_diagonal_(0).sum()) / (32 * 31)
        assert cosine < 0.1 if batch_norm else cosine > 0.7


def test_a_batch_of_one_image_has_an_embedding() -> None:
    model, image = (
        VSRN(REGIONS, WORDS, encoders=Encoders(width=4), num_blocks=1),
        torch.randn(1, 5, 6),
    )
    found = model.embed_images(image)
    torch.testing.assert_close(found, model.eval().embed_images(image))


def test_has_the_published_sizes() -> None:
    (info,) = (info for info in models() if info.name == "vsrn")
    expected = {"width": 2048, "num_blocks": 4, "word_width": 300, "caption_decoder": False}
    assert expected.items() <= info.parameters.items()


def test_caption_loss_is_the_likelihood_of_the_words() -> None:
    """And of one padding after the last of them."""
    decoder = CaptionDecoder(4, 9, word_width=3, width=5, dropout=0).double()
    regions = torch.randn(3, 5, 4, dtype=torch.float64)
    tokens, lengths = tiny.captions(3, 9)
    total = 0.0
    for i, length in enumerate(lengths.tolist()):
        keys = loops.gru(
            decoder.reader, [loops.linear(decoder.regions, row) for row in loops.matrix(regions[i])]
        )
        state = torch.tensor(keys[-1], dtype=torch.float64)
        for word, target in zip(tokens[i, :length], [*tokens[i, 1:length], 0], strict=True):
            context = attended(decoder, keys, loops.floats(state))
            joined = torch.cat(
                [decoder.embedding(word), torch.tensor(context, dtype=torch.float64)]
            )
            state = decoder.writer(joined, state)
            scores = loops.linear(decoder.out, loops.floats(state))
            total += math.log(sum(map(math.exp, scores))) - scores[int(target)]
    assert decoder(regions, tokens, lengths).item() == pytest.approx(total / 3)


def attended(decoder: CaptionDecoder, keys: loops.Matrix, state: list[float]) -> list[float]:
    """The mean of the keys, weighted by softmax of v tanh(W [key, state])."""
    weights = []
    for key in keys:
        hidden = [math.tanh(x) for x in loops.linear(decoder.attend, key + state)]
        weights.append(math.exp(loops.linear(decoder.score, hidden)[0]))
    return [
        sum(w * x for w, x in zip(weights, channel, strict=True)) / sum(weights)
        for channel in zip(*keys, strict=True)
    ]


def test_the_caption_loss_is_handed_over_once_and_only_in_training() -> None:
    tokens, lengths = tiny.captions(3, 9)
    images = torch.randn(3, 5, 6)
    model = VSRN(REGIONS, WORDS, encoders=Encoders(width=4), caption_decoder=True)
    model(images, tokens, lengths)
    loss = model.extra_loss()
    assert loss is not None
    torch.autograd.backward(loss)
    assert model.project.weight.grad is not None
    assert model.extra_loss() is None
    model.eval()(images, tokens, lengths)
    assert model.extra_loss() is None
    plain = VSRN(REGIONS, WORDS, encoders=Encoders(width=4))
    plain(images, tokens, lengths)
    assert plain.extra_loss() is None


def test_the_decoder_knows_which_image_a_text_describes() -> None:
    tokens, lengths = tiny.captions(4, 9)
    images = torch.randn(2, 5, 6)
    model = VSRN(REGIONS, WORDS, encoders=Encoders(width=4), caption_decoder=True)
    image_of_text = torch.tensor([0, 1, 1, 0])
    model(images, tokens, lengths, image_of_text)
    model(images[image_of_text], tokens, lengths)
    assert model.extra_loss() is not None
    with pytest.raises(ValueError, match="4 texts for 2 images: the caption decoder needs image_o"):
        model(images, tokens, lengths)


def test_one_vector_per_image_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"vsrn needs regions or a grid.*of shape \(6,\)"):
        VSRN(ImageInput(shape=(6,)), WORDS)
