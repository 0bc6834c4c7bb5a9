"""A loss for `SentenceTransformerTrainer`: any objective over (anchor, positive[, negatives])."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from gradspace import processes
from gradspace.loss.retrieval_loss import RetrievalLoss
from gradspace.objectives import Objective
from gradspace.objectives.contract import Reduction
from gradspace.scores.positives import stable_ids

NOBODY = -1
"""Id of a negative, which no anchor has."""


class ObjectiveLoss(nn.Module):
    """Loss in both directions over columns of sentences, called as the library calls its losses.

    Inputs: the first column holds anchors, the second their positives, and any further ones
    negatives, which are candidates of every anchor. Rows with equal `labels` belong together;
    without labels, rows with the same anchor or the same positive do. Embeddings are scaled to
    length 1.

    Relations: for pairs that are all different, "nt-xent" with temperature t is
    MultipleNegativesRankingLoss with scale 1/t, directions "query_to_doc" and "doc_to_query", and
    partition_mode "per_direction".

    Args:
        model: the SentenceTransformer to train.
        objective: an objective or its name.
        reduction: reduction of `RetrievalLoss`.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective | str = "nt-xent",
        *,
        reduction: Reduction | None = None,
    ) -> None:
        super().__init__()
        self.model = model  # the trainer replaces the attribute of this name by its wrapped model
        self.retrieval = RetrievalLoss(objective, reduction=reduction, normalize=True)

    def forward(
        self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None
    ) -> Tensor:
        columns = list(sentence_features)
        if len(columns) < 2:
            raise ValueError(
                f"expected columns of anchors and positives, got {len(columns)} column(s) of text"
            )
        ids = _ids(columns, labels)
        anchors, *others = (self.model(column)["sentence_embedding"] for column in columns)
        num_negatives = sum(map(len, others[1:]))
        value: Tensor = self.retrieval(
            anchors,
            torch.cat(others),
            image_ids=ids,
            text_ids=torch.cat([ids, ids.new_full((num_negatives,), NOBODY)]),
        )
        return value

    def get_config_dict(self) -> dict[str, str]:
        """Describe the loss for a model card."""
        retrieval = self.retrieval
        return {"objective": str(retrieval.objective), "reduction": retrieval.reduction}


def _ids(columns: list[dict[str, Tensor]], labels: Tensor | None) -> Tensor:
    """Compute non-negative ids, [rows], equal for rows that belong together, in any process."""
    if labels is not None:
        if labels.dim() != 1 or labels.dtype.is_floating_point:
            raise ValueError(
                "labels must be one integer per row, equal for rows that belong together, got "
                f"{labels.dtype} of shape {list(labels.shape)}"
            )
        return _linked(labels, labels)
    return _linked(_keys(columns[0]), _keys(columns[1]))


def _keys(column: dict[str, Tensor]) -> Tensor:
    """Compute int64 keys, [rows], equal for equal texts; without tokens, all are different."""
    tokens, mask = column.get("input_ids"), column.get("attention_mask")
    if tokens is None or mask is None or tokens.dim() != 2:
        first = next(iter(column.values()))
        return torch.arange(len(first), device=first.device) + (processes.rank() << 40)
    rows = zip(tokens.cpu(), mask.bool().cpu(), strict=True)
    return stable_ids([str(row[inside].tolist()) for row, inside in rows], tokens.device)


def _linked(first: Tensor, second: Tensor) -> Tensor:
    """Find, for each own row, the first row of any process that is linked to it by equal keys."""
    counts = processes.gather_rows(torch.tensor([len(first)], device=first.device))
    everybodys = [processes.gather_rows(part) for part in (first, second)]
    keys = [torch.unique(part, return_inverse=True)[1] for part in everybodys]
    ids = torch.arange(len(keys[0]), device=first.device)
    before = torch.empty_like(ids).fill_(NOBODY)
    while not torch.equal(ids, before):
        before = ids
        for group in keys:
            ids = ids.scatter_reduce(0, group, ids, "amin", include_self=False)[group]
    start = int(counts[: processes.rank()].sum())
    return ids[start : start + len(first)]
