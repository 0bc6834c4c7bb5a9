"""One's own passages and questions, and how they become tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gradspace.data import check_dataset, image_batches, open_dataset, training_batches
from gradspace.data.captions import EncodedCaptions
from gradspace.data.inputs import PassageReading
from gradspace.data.vocabulary import Vocabulary


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Six passages, p0 .. p5, with two questions each."""
    rows = [f"p{n}\tPassage {n} is about {'much ' * n}cheese." for n in range(6)]
    (tmp_path / "passages.tsv").write_text("\n".join(rows))
    asked = [f"p{n}\tWhat does {n} say, {way}?" for way in ("first", "then") for n in range(6)]
    (tmp_path / "questions.tsv").write_text("\n".join(asked))
    for split, names in {"train": "p0 p2 p4 p5", "dev": "p1", "test": "p3"}.items():
        (tmp_path / f"{split}.txt").write_text(names.replace(" ", "\n"))
    return tmp_path


def test_a_folder_opens_as_it_lies_there(corpus: Path) -> None:
    dataset = open_dataset(corpus)
    train = dataset.splits["train"]
    assert list(train.image_names) == ["p0", "p2", "p4", "p5"]
    assert train.passages is not None
    assert train.passages[1] == "Passage 2 is about much much cheese."
    assert train.captions[2:4] == ["What does 2 say, first?", "What does 2 say, then?"]
    assert train.image_of_caption.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert list(dataset.splits) == ["train", "dev", "test"]
    assert "test: 1 passage, 2 questions" in str(check_dataset(corpus))


def test_splits_by_shares(corpus: Path) -> None:
    for file in corpus.glob("*.txt"):
        file.unlink()
    dataset = open_dataset(corpus, dev_share=0.2, test_share=0.3)
    splits = dataset.splits
    assert "test 2 passages / " in dataset.description
    assert "20% of the passages are dev and 30% test, chosen by their" in dataset.description
    assert {name: len(split.image_names) for name, split in splits.items()} == {
        "train": 3,
        "dev": 1,
        "test": 2,
    }


def test_everything_wrong_is_listed_and_can_be_left_out(corpus: Path) -> None:
    with (corpus / "passages.tsv").open("a") as file:
        file.write("\np6\t \np1\tagain\nno tab here\np7\tNobody asks.\n")
    with (corpus / "questions.tsv").open("a") as file:
        file.write("\np6\tWhat?\nnobody\tWho?\np0\t \n")
    (corpus / "train.txt").write_text("p0\np2\np2\np6\np7\np9\np1\n")
    report = check_dataset(corpus)
    assert [(problem.kind, problem.item) for problem in report.problems] == [
        ("duplicate passage", "p1"),
        ("malformed row", "line 9 of passages.tsv"),
        ("question without passage", "line 14 of questions.tsv"),
        ("missing passage", "p9"),
        ("duplicate passage", "p2"),
        ("empty passage", "p6"),
        ("passage without question", "p7"),
        ("passage in two splits", "p1"),
        ("empty question", "question 3 of p0"),
    ]
    with pytest.raises(ValueError, match="has 9 problems, the first is duplicate passage"):
        open_dataset(corpus)
    train = open_dataset(corpus, skip_broken=True).splits["train"]
    assert list(train.image_names) == ["p0", "p2"]
    assert train.passages == ["Passage 0 is about cheese.", "Passage 2 is about much much cheese."]


def test_images_have_no_place_here(corpus: Path) -> None:
    with pytest.raises(ValueError, match="has passages in place of images: leave images out"):
        open_dataset(corpus, images=corpus)


def test_passages_travel_where_images_do(corpus: Path) -> None:
    train = open_dataset(corpus).splits["train"]
    assert train.passages is not None
    vocabulary = Vocabulary.build([*train.captions, *train.passages], min_count=1)
    read = PassageReading(vocabulary.encode_batch)
    captions = EncodedCaptions(vocabulary.encode_batch, train.captions)
    (batch,) = training_batches(train, captions, batch_size=8, seed=0, epoch=0, reading=read)
    lengths, tokens = batch.images[:, 0], batch.images[:, 1:]
    for row, length, image in zip(tokens, lengths, batch.image_ids.tolist(), strict=True):
        assert row[:length].tolist() == vocabulary.encode(train.passages[image])
        assert not row[length:].any()
    assert torch.equal(batch.image_ids, batch.text_ids)
    in_order = [part[:, 0] for part in image_batches(train, batch_size=3, reading=read)]
    assert torch.cat(in_order).tolist() == [len(vocabulary.encode(text)) for text in train.passages]


def test_a_model_of_passages_refuses_images() -> None:
    scenes = open_dataset("scenes", num_train=4, num_dev=2, num_test=2).splits["train"]
    read = PassageReading(Vocabulary.build(scenes.captions, 1).encode_batch)
    with pytest.raises(ValueError, match="split 'train' has images, and the model reads passages"):
        image_batches(scenes, batch_size=2, reading=read)
    questions = open_dataset("questions", num_train=4, num_dev=2, num_test=2).splits["train"]
    with pytest.raises(ValueError, match="split 'train' has passages, and the model reads images"):
        image_batches(questions, batch_size=2)
