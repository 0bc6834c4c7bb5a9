from __future__ import annotations

from pathlib import Path

import pytest
import torch
from models import loops, tiny

from gradspace.models.inputs import TextInput
from gradspace.models.prepare.tokenizer import Tokenizer
from gradspace.models.text import GRUEncoder, TransformerEncoder


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.bert(tmp_path_factory.mktemp("bert"))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_gru_is_the_equation(bidirectional: bool) -> None:
    """In any order of lengths; directions averaged at every word."""
    encoder = GRUEncoder(9, 4, word_width=3, bidirectional=bidirectional).double()
    tokens, lengths = tiny.captions(6, 9)
    words = encoder(tokens, lengths)
    last = encoder.sentence(tokens, lengths)
    for i, length in enumerate(lengths.tolist()):
        inputs = loops.matrix(encoder.embedding(tokens[i, :length]))
        expected = (loops.bi_gru if bidirectional else loops.gru)(encoder.gru, inputs)
        torch.testing.assert_close(words[i, :length], torch.tensor(expected, dtype=torch.float64))
        assert not words[i, length:].any()
        if not bidirectional:
            torch.testing.assert_close(last[i], words[i, length - 1])


def test_words_start_uniform_between_minus_and_plus_a_tenth() -> None:
    weight = GRUEncoder(2000, 2).embedding.weight
    assert weight.shape == (2000, 300)
    assert 0.0999 < weight.max() <= 0.1
    assert -0.1 <= weight.min() < -0.0999
    assert abs(weight.mean()) < 1e-3


def test_dropout_is_for_training() -> None:
    encoder = GRUEncoder(9, 4, dropout=0.5)
    tokens, lengths = tiny.captions(2, 9)
    assert not torch.equal(encoder(tokens, lengths), encoder(tokens, lengths))
    encoder.eval()
    assert torch.equal(encoder(tokens, lengths), encoder(tokens, lengths))


def test_tokens_of_a_transformer_do_not_depend_on_their_padding(bert: Path) -> None:
    encoder = TransformerEncoder(TextInput(encoder=bert), 5, rate=0.1).eval()
    tokens, lengths = tiny.captions(3, 11)
    padded = torch.nn.functional.pad(tokens, (0, 4))
    words, again = encoder(tokens, lengths), encoder(padded, lengths)
    assert words.shape == (3, 6, 5)
    for i, length in enumerate(lengths):
        torch.testing.assert_close(again[i, :length], words[i, :length])
        torch.testing.assert_close(encoder.sentence(tokens, lengths)[i], words[i, :length].mean(0))


def test_a_frozen_text_encoder_stays_as_it_is(bert: Path) -> None:
    encoder = TransformerEncoder(TextInput(encoder=bert, fine_tune=False), 5, rate=0.1).train()
    tokens, lengths = tiny.captions(2, 11)
    assert torch.equal(encoder(tokens, lengths), encoder(tokens, lengths)), "dropout is off"
    encoder(tokens, lengths).sum().backward()
    trained = {name for name, parameter in encoder.named_parameters() if parameter.grad is not None}
    assert trained == {"linear.weight", "linear.bias"}


def test_clip_folders_give_their_text_tower(tmp_path: Path) -> None:
    encoder = TransformerEncoder(TextInput(encoder=tiny.clip(tmp_path)), 5, rate=0.1)
    assert type(encoder.pretrained.network).__name__ == "CLIPTextModel"
    assert encoder(*tiny.captions(2, 11)).shape == (2, 6, 5)


def test_an_image_network_is_no_text_encoder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a ViTModel, which takes pixel_values: it is not a te"):
        TransformerEncoder(TextInput(encoder=tiny.vit(tmp_path)), 5, rate=0.1)


def test_tokenizer_pads_with_zero_and_counts(bert: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer(bert)
    tokens, lengths = tokenizer.encode(["A dog", "two dogs run", "zebra"])
    cls, sep, unknown = 2, 3, 1
    words = [[cls, 4, 5, sep, 0, 0], [cls, 10, 5, 8, 7, sep], [cls, unknown, sep, 0, 0, 0]]
    assert tokens.tolist() == words
    assert tokens.dtype == lengths.dtype == torch.int64
    assert lengths.tolist() == [4, 6, 3]
    tokenizer.save(tmp_path)
    assert torch.equal(
        Tokenizer(tmp_path).encode(["two dogs"])[0], tokenizer.encode(["two dogs"])[0]
    )


def test_a_missing_tokenizer_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere does not exist: expected the folder of"):
        Tokenizer(tmp_path / "nowhere")


def test_long_captions_are_cut_and_still_end(bert: Path) -> None:
    tokens, lengths = Tokenizer(bert).encode(["dog " * 40])
    assert lengths.tolist() == [12]
    assert tokens[0, -1] == 3


def encode_in_worker(tokenizer: Tokenizer) -> list[list[int]]:
    tokens: list[list[int]] = tokenizer.encode(["a dog"])[0].tolist()
    return tokens


@pytest.mark.slow
def test_tokenizer_works_in_data_workers(bert: Path) -> None:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        assert pool.submit(encode_in_worker, Tokenizer(bert)).result() == [[2, 4, 5, 3]]


def test_tokenizer_knows_pieces_of_words(bert: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer(bert)
    assert tokenizer.unknown_words("a Cat runs, two dogs; a Cat") == ["Cat", ",", ";"]
    assert tokenizer.unknown_words("the red dog") == tokenizer.unknown_words("") == []
    tokenizer._tokenizer.unk_token = "[SEP]"  # as CLIP's, which is its mark of the end
    tokenizer.save(tmp_path)
    assert Tokenizer(tmp_path).unknown_words("the red dog") == []


def test_a_tokenizer_knows_its_mask_and_the_pieces_of_words(bert: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer(bert)
    assert tokenizer.pieces == (tiny.WORDS.index("##s"),)
    assert tokenizer.mask == tiny.WORDS.index("[UNK]"), "where there is none for it"
    from transformers import AutoTokenizer

    masking = AutoTokenizer.from_pretrained(bert)
    masking.add_special_tokens({"mask_token": "[MASK]"})
    masking.save_pretrained(tmp_path)
    assert Tokenizer(tmp_path).mask == len(tiny.WORDS)
