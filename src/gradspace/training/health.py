"""Runs that have gone wrong are stopped, with a sentence that says what happened and what helps."""

from __future__ import annotations

from torch import Tensor, nn

from gradspace.training.sharing import own_part

ALIKE = 0.999
"""Mean cosine between the embeddings of a batch above which they count as all alike."""
PATIENCE = 30
"""Checks in a row that must find them so."""


class TrainingError(RuntimeError):
    """The run cannot go on; the message explains."""


class CollapseWatch:
    """Notices when all images and all texts have moved to one point."""

    def __init__(self) -> None:
        self.times_alike = 0

    def check(self, images: Tensor, texts: Tensor, step: int) -> None:
        """Look at a batch of unit vectors; raise after `PATIENCE` batches that are all alike."""
        alike = min(mean_cosine(images), mean_cosine(texts))
        self.times_alike = self.times_alike + 1 if alike > ALIKE else 0
        if self.times_alike >= PATIENCE:
            raise TrainingError(
                f"training collapsed: at step {step} all embeddings point the same way (mean "
                f"cosine {alike:.4f}), so that the loss is stuck at its margin and no gradient "
                "separates them; lower training.learning_rate, or start with all negatives by "
                'objective.warm_up = "triplet"'
            )


def mean_cosine(embeddings: Tensor) -> float:
    """Mean cosine over all pairs of unit vectors, from the length of their mean."""
    return float(embeddings.detach().float().mean(0).square().sum())


def check_gradient(model: nn.Module, norm: Tensor, loss: Tensor, step: int) -> None:
    """A gradient that is NaN or infinite stops the run and names where it is."""
    if norm.isfinite():
        return
    bad = [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and not own_part(parameter.grad).isfinite().all()
    ]
    where = f"{bad[0]} and {len(bad) - 1} more parameters" if len(bad) > 1 else "".join(bad)
    raise not_finite(step, float(loss.detach()), where or "the loss")


def not_finite(step: int, loss: float, where: str = "the loss") -> TrainingError:
    return TrainingError(
        f"the gradient of {where} is not finite at step {step} (loss {loss:g}); lower "
        "training.learning_rate, or use precision bfloat16 or float32 instead of float16"
    )
