"""Score matrices on disk: safetensors with `scores[image, text]`, `image_ids`, `text_ids`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from gradspace.checks import check_finite, check_ids, check_scores
from gradspace.files import check_is_file, write_atomically
from gradspace.scores.positives import Positives, match_ids


@dataclass(frozen=True)
class SavedScores:
    """A score matrix and the positives of its rows, as read from a file."""

    scores: Tensor
    """scores[image, text]"""
    positives: Positives


def save_scores(path: str | Path, scores: Tensor, image_ids: Tensor, text_ids: Tensor) -> None:
    """Write scores[image, text] and integer ids for `gradspace analyse`."""
    _checked(scores, image_ids, text_ids)
    tensors = {"scores": scores, "image_ids": image_ids, "text_ids": text_ids}
    with write_atomically(path, "wb") as file:
        file.write(save({k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}))


def load_scores(path: str | Path) -> SavedScores:
    """Read what `save_scores` wrote."""
    check_is_file(Path(path), "a score file, which gradspace.save_scores writes")
    wanted = ("scores", "image_ids", "text_ids")
    try:
        with safe_open(path, framework="pt") as file:
            missing = [name for name in wanted if name not in file.keys()]  # noqa: SIM118
            if missing:
                raise ValueError(
                    f"{path} lacks {' and '.join(missing)}: a score file holds {', '.join(wanted)}"
                )
            tensors = {name: file.get_tensor(name) for name in wanted}
    except SafetensorError as error:
        raise ValueError(f"{path} is not a complete safetensors file ({error})") from error
    _checked(**tensors)
    scores = tensors["scores"]
    return SavedScores(scores, match_ids(tensors["image_ids"], tensors["text_ids"]))


def _checked(scores: Tensor, image_ids: Tensor, text_ids: Tensor) -> None:
    check_scores(scores)
    check_ids("image_ids", image_ids, scores.shape[0], "rows of scores")
    check_ids("text_ids", text_ids, scores.shape[1], "columns of scores")
    check_finite("scores", scores)
    if not torch.isin(image_ids, text_ids).any():
        raise ValueError(
            "no image id equals a text id, so the scores have no positive pair; check the ids"
        )
