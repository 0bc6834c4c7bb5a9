"""A loss with the signature of open_clip's `ClipLoss`: any objective in an open_clip-style loop."""

from __future__ import annotations

from torch import Tensor, nn

from gradspace.checks import Ids
from gradspace.loss.retrieval_loss import RetrievalLoss
from gradspace.objectives import Objective
from gradspace.objectives.contract import Reduction
from gradspace.scores.tiles import as_computed


class ClipLoss(nn.Module):
    """Loss in both directions, called as open_clip calls its loss: `loss(**model(...))`.

    Features are unit vectors, as open_clip's models return them. Without ids image i belongs to
    text i; with ids, equal ones belong together. Several processes share the batch as in
    `RetrievalLoss`, with the gradient of one process that has all of it.

    An objective has its own scale, margin or temperature, made for cosines. `logit_scale` and
    `logit_bias` are therefore not used: they keep their values and get a gradient of zero, so that
    DistributedDataParallel does not wait for one. With `learn_scale`, for objectives without a
    scale of their own, the objective gets the cosines times `logit_scale`, which is then trained.

    Relations: ClipLoss(gs.objective("nt-xent", temperature=1), learn_scale=True) is open_clip's;
    "nt-xent" with temperature t is open_clip's with logit_scale fixed at 1/t.

    Examples:
        >>> import torch
        >>> loss = ClipLoss("triplet-hard")
        >>> loss(torch.eye(3), torch.eye(3), logit_scale=torch.tensor(14.3), output_dict=True)
        {'contrastive_loss': tensor(0.)}
    """

    def __init__(
        self,
        objective: Objective | str = "nt-xent",
        *,
        reduction: Reduction | None = None,
        learn_scale: bool = False,
    ) -> None:
        super().__init__()
        self.retrieval = RetrievalLoss(
            objective, reduction=reduction, normalize=False if learn_scale else None
        )
        self.learn_scale = learn_scale

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor,
        logit_bias: Tensor | None = None,
        output_dict: bool = False,
        *,
        image_ids: Ids | None = None,
        text_ids: Ids | None = None,
    ) -> Tensor | dict[str, Tensor]:
        if logit_scale is None:
            raise ValueError(
                "logit_scale must be a tensor, got None; pass the one returned by the model"
            )
        images, texts = as_computed(image_features), as_computed(text_features)
        if self.learn_scale:
            images = images * logit_scale
        value: Tensor = self.retrieval(images, texts, image_ids, text_ids)
        value = value + 0 * logit_scale
        if logit_bias is not None:
            value = value + 0 * logit_bias
        return {"contrastive_loss": value} if output_dict else value
