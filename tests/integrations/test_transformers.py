"""COCOS of transformers' own Trainer, whose model has the loss inside."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradspace as gs
from gradspace.integrations.transformers import CocosCallback


class TwoTables(nn.Module):
    def __init__(self, objective: str) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.images, self.texts = (
            nn.Parameter(torch.randn(16, 4, generator=generator)) for _ in range(2)
        )
        self.loss = gs.RetrievalLoss(objective, normalize=True)

    def forward(self, row: Tensor, item: Tensor) -> dict[str, Tensor]:
        images, texts = self.images[row], self.texts[row]
        return {"loss": self.loss(images, texts, image_ids=item, text_ids=item)}


@pytest.fixture
def trainer(tmp_path: Path) -> Any:
    pytest.importorskip("accelerate")
    from transformers import Trainer, TrainingArguments

    rows = [{"row": row, "item": row // 2} for row in range(16)]
    return Trainer(
        TwoTables("nt-xent"),
        TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=7,
            per_device_train_batch_size=16,
            learning_rate=0.1,
            lr_scheduler_type="constant",
            optim="sgd",
            logging_steps=7,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            remove_unused_columns=False,
            dataloader_pin_memory=False,
        ),
        train_dataset=rows,
    )


@pytest.mark.filterwarnings("ignore")
def test_records_the_counts_of_the_batch(trainer: Any, tmp_path: Path) -> None:
    path = tmp_path / "made" / "cocos.jsonl"
    trainer.add_callback(CocosCallback(trainer, path, every=3))
    model = TwoTables("nt-xent")  # as the trainer's is before the first step
    trainer.train()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 4, 7]
    images, texts = (
        nn.functional.normalize(t.detach(), dim=1) for t in (model.images, model.texts)
    )
    items = torch.arange(16) // 2
    expected = gs.cocos(model.loss.objective, images @ texts.t(), gs.match_ids(items, items))
    for name, value in lines[0]["image_to_text"].items():
        assert value == pytest.approx(getattr(expected, name), rel=1e-5), name
    logged = [
        entry for entry in trainer.state.log_history if "cocos/image_to_text/per_batch" in entry
    ]
    assert [entry["step"] for entry in logged] == [1, 4, 7]
    assert not trainer.model.loss._forward_hooks


def test_wants_an_objective_of_this_project() -> None:
    with pytest.raises(ValueError, match="no RetrievalLoss in this trainer's loss"):
        CocosCallback(SimpleNamespace(model=nn.Linear(2, 2)), "cocos.jsonl")
    with pytest.raises(ValueError, match="every must be at least 1, got 0"):
        CocosCallback(SimpleNamespace(model=TwoTables("nt-xent")), "cocos.jsonl", every=0)
