"""Checks that stop a failed run, with a sentence that says what happened and what helps."""

from __future__ import annotations

from torch import Tensor, nn

from gradspace.training.sharing import own_part

ALIKE = 0.999
"""Mean cosine between the embeddings of a batch above which they count as collapsed."""
PATIENCE = 30
"""Number of consecutive checks that must find a collapse."""


class TrainingError(RuntimeError):
    """An error from which the run cannot recover; the message explains it."""


class CollapseWatch:
    """Detector of a collapse, in which all images and texts move to one point."""

    def __init__(self) -> None:
        self.times_alike = 0

    def check(self, images: Tensor, texts: Tensor, step: int) -> None:
        """Check a batch of unit vectors; raise after `PATIENCE` collapsed batches."""
        alike = min(mean_cosine(images), mean_cosine(texts))
        self.times_alike = self.times_alike + 1 if alike > ALIKE else 0
        if self.times_alike >= PATIENCE:
            raise TrainingError(
                f"training collapsed: at step {step} all embeddings point in the same direction "
                f"(mean cosine {alike:.4f}), so that the loss is stuck at its margin and no "
                "gradient separates them; lower training.learning_rate, or start with all "
                'negatives by objective.warm_up = "triplet"'
            )


def mean_cosine(embeddings: Tensor) -> float:
    """Compute the mean cosine over all pairs of unit vectors, from the length of their mean."""
    return float(embeddings.detach().float().mean(0).square().sum())


def check_gradient(model: nn.Module, norm: Tensor, loss: Tensor, step: int) -> None:
    """Stop the run if a gradient is NaN or infinite, and name its parameters."""
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
