"""Memory of past embeddings, for more negatives than a batch has (cross-batch memory).

Wang et al., "Cross-batch memory for embedding learning", 2020. Embeddings drift slowly enough for
those of the last batches to serve as negatives; they get no gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gradspace.checks import check_count
from gradspace.execution.distributed import Items


class Memory(nn.Module):
    """The last `size` images and texts with their ids, the newest first; empty at first."""

    images: Tensor
    texts: Tensor
    image_ids: Tensor
    text_ids: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        check_count("memory", size)
        self.size = size
        for name in ("images", "texts"):
            self.register_buffer(name, torch.zeros(0, 0))
        for name in ("image_ids", "text_ids"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.long))

    def recall(self, like: Tensor) -> tuple[Items, Items] | None:
        """Return past images and texts with the device and type of `like`; None while empty."""
        if not len(self.image_ids) and not len(self.text_ids):
            return None
        width = like.shape[1]
        if self.images.shape[1] != width:
            raise ValueError(
                f"the memory holds embeddings of width {self.images.shape[1]}, the batch has width "
                f"{width}; make a new RetrievalLoss for another model"
            )
        return (
            Items(self.images.to(like), self.image_ids.to(like.device)),
            Items(self.texts.to(like), self.text_ids.to(like.device)),
        )

    @torch.no_grad()
    def remember(self, images: Items, texts: Items) -> None:
        self.images, self.image_ids = self._newest(images, self.images, self.image_ids)
        self.texts, self.text_ids = self._newest(texts, self.texts, self.text_ids)

    def _newest(self, new: Items, old: Tensor, old_ids: Tensor) -> tuple[Tensor, Tensor]:
        new = new[: self.size]
        kept = self.size - len(new)
        embeddings = new.embeddings.detach()
        if len(old_ids):
            embeddings = torch.cat([embeddings, old[:kept].to(embeddings)])
        ids = torch.cat([new.ids, old_ids[:kept].to(new.ids)]) if len(old_ids) else new.ids
        return embeddings.clone(), ids.clone()

    def _load_from_state_dict(self, state: Mapping[str, Any], prefix: str, *others: Any) -> None:
        """Accept any number of rows, since how full a memory is belongs to its state."""
        for name, buffer in self._buffers.items():
            if prefix + name in state and buffer is not None:
                self._buffers[name] = torch.empty_like(state[prefix + name], device=buffer.device)
        super()._load_from_state_dict(state, prefix, *others)

    def extra_repr(self) -> str:
        return f"size={self.size}"
