"""The loss for sentence-transformers: its numbers, what belongs together, and the real trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from models import tiny
from samples import NAMES, OFFLINE_NAMES
from several import together
from torch import Tensor, nn

import gradspace as gs
from gradspace import processes
from gradspace.integrations.sentence_transformers import ObjectiveLoss

Columns = list[dict[str, Tensor]]


class Table(nn.Module):
    """Stands for a SentenceTransformer: a row of numbers for the first token of a sentence."""

    def __init__(self, size: int = 40, width: int = 6) -> None:
        super().__init__()
        numbers = torch.randn(size, width, generator=torch.Generator().manual_seed(0))
        self.rows = nn.Parameter(numbers.double())

    def forward(self, column: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sentence_embedding": self.rows[column["input_ids"][:, 0]]}


def column(*first_tokens: int, padding: int = 0) -> dict[str, Tensor]:
    """Sentences of two tokens, the second of which is the same in all."""
    tokens = torch.tensor([[token, 1, *[0] * padding] for token in first_tokens])
    return {
        "input_ids": tokens,
        "attention_mask": (torch.arange(2 + padding) < 2).expand_as(tokens),
    }


def outcome(loss: nn.Module, columns: Columns, labels: Tensor | None = None) -> tuple[Tensor, ...]:
    model = loss.model
    assert isinstance(model, Table)
    model.zero_grad()
    value = loss(columns, labels)
    value.backward()
    assert model.rows.grad is not None
    return value.detach(), model.rows.grad.clone()


def expected(
    objective: str, columns: Columns, image_ids: list[int], text_ids: list[int]
) -> tuple[Tensor, ...]:
    """RetrievalLoss on the same embeddings, with the ids that a person would give."""
    model = Table()
    embeddings = [model(part)["sentence_embedding"] for part in columns]
    loss = gs.RetrievalLoss(objective, normalize=True)
    value = loss(embeddings[0], torch.cat(embeddings[1:]), image_ids, text_ids)
    value.backward()
    assert model.rows.grad is not None
    return value.detach(), model.rows.grad


PAIRS = [column(2, 3, 4, 5, padding=1), column(10, 11, 12, 13)]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OFFLINE_NAMES])
def test_every_objective_has_the_value_and_gradient_of_the_retrieval_loss(name: str) -> None:
    found = outcome(ObjectiveLoss(Table(), name), PAIRS)
    torch.testing.assert_close(found, expected(name, PAIRS, [0, 1, 2, 3], [0, 1, 2, 3]))


def test_rows_with_equal_labels_belong_together() -> None:
    found = outcome(ObjectiveLoss(Table(), "smooth-ap"), PAIRS, torch.tensor([7, -3, 7, 0]))
    torch.testing.assert_close(found, expected("smooth-ap", PAIRS, [7, 1, 7, 0], [7, 1, 7, 0]))


@pytest.mark.parametrize(
    ("anchors", "positives", "ids"),
    [
        ((2, 3, 2, 5), (10, 11, 12, 13), [0, 1, 0, 3]),  # one question, two passages
        ((2, 3, 4, 5), (10, 11, 10, 13), [0, 1, 0, 3]),  # two questions about one passage
        ((2, 3, 3, 5), (10, 10, 12, 12), [0, 0, 0, 0]),  # a chain
    ],
)
def test_without_labels_equal_texts_belong_together(
    anchors: tuple[int, ...], positives: tuple[int, ...], ids: list[int]
) -> None:
    columns = [column(*anchors, padding=2), column(*positives)]
    if len(set(ids)) == 1:
        columns = [column(*anchors, 6), column(*positives, 14)]  # somebody has to be a negative
        ids = [*ids, 4]
    found = outcome(ObjectiveLoss(Table(), "nt-xent"), columns)
    torch.testing.assert_close(found, expected("nt-xent", columns, ids, ids))


def test_further_columns_are_negatives_of_every_anchor() -> None:
    columns = [*PAIRS, column(20, 21, 22, 23), column(30, 31, 32, 33)]
    ids = [0, 1, 2, 3]
    found = outcome(ObjectiveLoss(Table(), "triplet"), columns)
    torch.testing.assert_close(found, expected("triplet", columns, ids, [*ids, *[-1] * 8]))


def test_input_that_is_no_tokens_goes_by_position() -> None:
    class Pooled(Table):
        def forward(self, column: dict[str, Tensor]) -> dict[str, Tensor]:
            return {"sentence_embedding": self.rows[column["pixel_values"]]}

    numbers = [{"pixel_values": torch.tensor(rows)} for rows in ([2, 3, 4, 5], [10, 11, 12, 13])]
    found = outcome(ObjectiveLoss(Pooled(), "nt-xent"), numbers)
    torch.testing.assert_close(found, expected("nt-xent", PAIRS, [0, 1, 2, 3], [0, 1, 2, 3]))


def test_errors_are_for_users() -> None:
    loss = ObjectiveLoss(Table())
    with pytest.raises(ValueError, match="expected columns of anchors and positives, got 1 col"):
        loss(PAIRS[:1])
    with pytest.raises(ValueError, match=r"labels must be one integer per row.*torch.float32"):
        loss(PAIRS, torch.tensor([0.5, 0.1, 1.0, 0.0]))


def test_configuration_is_plain() -> None:
    loss = ObjectiveLoss(Table(), gs.objective("nt-xent", temperature=0.05))
    assert loss.get_config_dict() == {"objective": "NTXent(temperature=0.05)", "reduction": "mean"}


def _write_ids(folder: Path) -> None:
    rows = [(2, 3), (4, 2, 6)][processes.rank()], [(10, 11), (11, 12, 13)][processes.rank()]
    loss = ObjectiveLoss(Table(), "nt-xent")
    value, gradient = outcome(loss, [column(*rows[0], padding=processes.rank()), column(*rows[1])])
    torch.save((value, gradient), folder / f"{processes.rank()}.pt")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.slow
def test_texts_of_other_processes_belong_together_too(tmp_path: Path) -> None:
    together(2, _write_ids, tmp_path)
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    columns = [column(2, 3, 4, 2, 6), column(10, 11, 11, 12, 13)]
    value, gradient = expected("nt-xent", columns, [0, 1, 1, 0, 4], [0, 1, 1, 0, 4])
    torch.testing.assert_close(parts[0][0], value)
    torch.testing.assert_close((parts[0][1] + parts[1][1]) / 2, gradient)


# --- against the peer -------------------------------------------------------------------------


@pytest.fixture
def peer() -> Any:
    return pytest.importorskip("sentence_transformers")


@pytest.mark.filterwarnings("ignore")
def test_nt_xent_is_multiple_negatives_ranking(peer: Any) -> None:
    """Both directions, and the direction from anchors to positives alone."""
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    both = MultipleNegativesRankingLoss(
        Table(),
        scale=10,
        directions=("query_to_doc", "doc_to_query"),
        partition_mode="per_direction",
    )
    theirs = outcome(both, PAIRS)
    torch.testing.assert_close(outcome(ObjectiveLoss(Table(), "nt-xent"), PAIRS), theirs)

    model = Table()
    anchors, positives = (
        nn.functional.normalize(model(part)["sentence_embedding"]) for part in PAIRS
    )
    half = gs.objective("nt-xent")(anchors @ positives.t(), torch.eye(4, dtype=torch.bool)).mean()
    torch.autograd.backward(half)
    theirs = outcome(MultipleNegativesRankingLoss(Table(), scale=10), PAIRS)
    torch.testing.assert_close((half.detach(), model.rows.grad), theirs)


@pytest.mark.filterwarnings("ignore")
def test_with_negatives_the_half_is_multiple_negatives_ranking(peer: Any) -> None:
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    columns = [*PAIRS, column(20, 21, 22, 23)]
    model = Table()
    anchors, *others = (
        nn.functional.normalize(model(part)["sentence_embedding"]) for part in columns
    )
    scores = anchors @ torch.cat(others).t()
    half = gs.objective("nt-xent", temperature=0.05)(scores, torch.eye(4, 8, dtype=torch.bool))
    torch.autograd.backward(half.mean())
    theirs = outcome(MultipleNegativesRankingLoss(Table()), columns)  # scale 20
    torch.testing.assert_close((half.mean().detach(), model.rows.grad), theirs)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_real_trainer_trains_and_saves(peer: Any, tmp_path: Path) -> None:
    """A few steps on a tiny BERT: the loss falls, COCOS are recorded, the model card is written."""
    pytest.importorskip("accelerate")
    datasets = pytest.importorskip("datasets")
    from gradspace.integrations.transformers import CocosCallback

    torch.manual_seed(0)
    words = peer.sentence_transformer.modules.Transformer(str(tiny.bert(tmp_path / "bert")))
    pooling = peer.sentence_transformer.modules.Pooling(words.get_embedding_dimension())
    model = peer.SentenceTransformer(modules=[words, pooling], device="cpu")
    anchors = ["the dog", "two dogs", "a red dog", "the red dogs run"] * 8
    positives = ["dog run", "two two", "red", "runs runs the red"] * 8
    loss = ObjectiveLoss(model, "circle/sigmoid-ms")
    trainer = peer.SentenceTransformerTrainer(
        model=model,
        args=peer.SentenceTransformerTrainingArguments(
            output_dir=str(tmp_path / "out"),
            max_steps=12,
            per_device_train_batch_size=8,
            learning_rate=5e-3,
            logging_steps=3,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=datasets.Dataset.from_dict({"anchor": anchors, "positive": positives}),
        loss=loss,
    )
    trainer.add_callback(CocosCallback(trainer, tmp_path / "cocos.jsonl", every=5))
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert losses[-1] < losses[0]
    lines = [json.loads(line) for line in (tmp_path / "cocos.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 6, 11]
    assert lines[0]["image_to_text"]["per_query"] > 0
    logged = [line for line in trainer.state.log_history if "cocos/text_to_image/effective" in line]
    assert [line["step"] for line in logged] == [1, 6, 11]
    model.save_pretrained(str(tmp_path / "saved"))
    assert "ObjectiveLoss" in (tmp_path / "saved" / "README.md").read_text()
    again = peer.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    first, second = (m.encode(["a red dog"], convert_to_tensor=True) for m in (model, again))
    torch.testing.assert_close(first, second)
