"""Checks of user input, whose errors say what was expected, what was given, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Id = int | str
Ids = Tensor | NDArray[Any] | Sequence[int] | Sequence[str] | Sequence[Sequence[Id]]
"""Ids of images, texts and the like: items with equal ids belong together. An item has one id or,
in a matrix, several; one in common makes a match. Shorter rows repeat an id."""


def check_tensor(name: str, value: object) -> None:
    """Require a tensor; arrays and lists are not converted implicitly."""
    if not isinstance(value, Tensor):
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        raise ValueError(f"{name} must be a tensor, got {kind}; convert with torch.as_tensor")


def check_count(name: str, value: object) -> None:
    """Require a positive whole number."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} must be a positive whole number, got {value!r}")


def check_scores(scores: Tensor) -> None:
    """Require a non-empty floating point matrix [queries, candidates]."""
    check_tensor("scores", scores)
    if scores.dim() != 2:
        raise ValueError(f"scores must be [queries, candidates], got shape {list(scores.shape)}")
    if not scores.dtype.is_floating_point:
        raise ValueError(
            f"scores must be floating point, got {scores.dtype}; convert them with .float()"
        )
    if 0 in scores.shape:
        raise ValueError(
            f"scores must hold at least one query and one candidate, got shape {list(scores.shape)}"
        )


def check_same_shape(scores: tuple[int, int], positives: tuple[int, int]) -> None:
    if scores != positives:
        raise ValueError(
            f"scores and positives must have the same shape, got {list(scores)} "
            f"and {list(positives)}"
        )


def check_embeddings(
    images: Tensor,
    texts: Tensor,
    names: tuple[str, str] = ("images", "texts"),
    may_be_empty: bool = False,
    values: bool = True,
) -> None:
    """Require two float matrices of equal width and type and, with `values`, finite ones."""
    for name, embeddings in zip(names, (images, texts), strict=True):
        check_tensor(name, embeddings)
        if embeddings.dim() != 2:
            raise ValueError(f"{name} must be [count, width], got shape {list(embeddings.shape)}")
        if not embeddings.dtype.is_floating_point:
            raise ValueError(
                f"{name} must be floating point, got {embeddings.dtype}; convert with .float()"
            )
        if not embeddings.shape[0] and not may_be_empty:
            raise ValueError(f"{name} is empty: at least one row is needed")
    if images.shape[1] != texts.shape[1]:
        raise ValueError(
            f"{names[0]} and {names[1]} must have the same width, got {images.shape[1]} "
            f"and {texts.shape[1]}"
        )
    if images.dtype != texts.dtype:
        raise ValueError(
            f"{names[0]} and {names[1]} must have the same type, got {images.dtype} and "
            f"{texts.dtype}; convert one of them"
        )
    if values and not torch.compiler.is_compiling():
        check_finite(names[0], images)
        check_finite(names[1], texts)


def check_finite(name: str, rows: Tensor) -> None:
    """Reject NaN and infinity, naming the first bad row; takes a single pass if all is well."""
    if rows.detach().sum().isfinite():
        return  # a sum may also overflow with finite values, which the check below accepts
    bad = ~rows.detach().isfinite().all(1)
    if bad.any():
        raise ValueError(
            f"{name} has NaN or infinite values in {int(bad.sum())} of {len(rows)} rows, "
            f"the first in row {int(bad.int().argmax())}"
        )


def check_ids(name: str, ids: Ids, expected: int, what: str) -> None:
    """Require one id per item, and ids that can be compared."""
    if len(ids) != expected:
        raise ValueError(f"{name} has {len(ids)} entries for {expected} {what}")
    ids_vector(ids, name)


def num_ids_of_each(ids: Ids) -> int | None:
    """None for a vector of ids, which has one of each."""
    shape = ids.shape if isinstance(ids, Tensor | np.ndarray) else np.shape(ids[:1])
    return shape[1] if len(shape) == 2 else None


def ids_vector(ids: Ids, name: str = "ids") -> Tensor | NDArray[Any]:
    """Convert ids to a vector of integers or names, also from a table's column of objects."""
    if isinstance(ids, Tensor):
        comparable = not ids.dtype.is_floating_point and ids.dtype != torch.bool
    else:
        try:
            ids = np.asarray(ids)
        except ValueError:
            raise ValueError(
                f"{name} has rows of different lengths: repeat an id where there are fewer"
            ) from None
        if ids.dtype.kind == "O":
            kinds = set(map(type, ids.flat))
            for kind, same in (((int, np.integer), np.int64), (str, str)):
                if all(issubclass(found, kind) and found is not bool for found in kinds):
                    ids = ids.astype(same)
        comparable = ids.dtype.kind in "iuU" or not ids.size
    if ids.ndim not in (1, 2) or not comparable:
        raise ValueError(
            f"{name} must be a vector of integers or names, got {ids.dtype} of shape "
            f"{list(ids.shape)}; a matrix has several ids of each"
        )
    return ids
