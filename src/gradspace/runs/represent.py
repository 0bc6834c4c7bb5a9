"""Representation of a split for scoring: embeddings, or the parts of a model that scores pairs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradspace.data.batches import image_batches, text_batches
from gradspace.data.dataset import Split
from gradspace.data.loader import Loader
from gradspace.models import PairScorer, Reranker
from gradspace.models.pooling import length_mask
from gradspace.processes import gather_rows, rank, world_size
from gradspace.progress import Progress
from gradspace.runs.system import System
from gradspace.scores.evaluating import evaluating
from gradspace.scores.represented import Embeddings, Parts, Represented
from gradspace.scores.two_stage import TwoStageScores

BATCH = 256
PICTURES = 32
"""Number of pictures in a batch for networks with large feature maps; divides BATCH."""


def represent_split(
    system: System,
    split: Split,
    progress: Progress | None = None,
    *,
    store: torch.device | None = None,
) -> Represented:
    """Represent every image and every caption of a split, in order, by a model of either kind.

    `store` is the device that keeps parts; for a large split, main memory.
    """
    if isinstance(system.model, PairScorer):
        return _parts_of_split(system, system.model, split, progress, store or system.device)
    return embed_split(system, split, progress)


@torch.inference_mode()
def embed_split(system: System, split: Split, progress: Progress | None = None) -> Embeddings:
    """Embed every image and every caption of a split, in order.

    Several processes embed a share each, and all return all embeddings.
    """
    mine = rank(), world_size()
    first, last = share(len(split.image_names), *mine)
    first_text, last_text = share(len(split.captions), *mine)
    total, done = last - first + last_text - first_text, 0
    images = [torch.zeros(0, system.model.width, device=system.device)]
    texts = [*images]
    with evaluating(system.model):
        for batch in images_to_embed(system, split, first, last):
            images.append(system.model.embed_images(batch.to(system.device)).float())
            done += len(batch)
            if progress:
                progress(done, total)
        for tokens, lengths in text_batches(
            split, system.encode, batch_size=BATCH, start=first_text, stop=last_text
        ):
            texts.append(system.model.embed_texts(tokens.to(system.device), lengths).float())
            done += len(tokens)
            if progress:
                progress(done, total)
    return Embeddings(
        images=gather_rows(torch.cat(images)),
        texts=gather_rows(torch.cat(texts)),
        image_ids=torch.arange(len(split.image_names)),
        text_ids=torch.from_numpy(split.image_of_caption),
        image_names=split.image_names,
        captions=split.captions,
    )


def images_to_embed(
    system: System, split: Split, start: int = 0, stop: int | None = None
) -> Loader[Tensor]:
    """Load the model's input for images start .. stop - 1 of a split, in order."""
    return image_batches(
        split,
        batch_size=images_at_once(system),
        reading=system.reading,
        start=start,
        stop=stop,
        num_workers=system.num_workers,
    )


def images_at_once(system: System) -> int:
    return PICTURES if system.reading.kind == "pictures" else BATCH


def share(num_items: int, number: int, count: int) -> tuple[int, int]:
    """Return start and end of share `number` of `count`, in whole batches.

    Thus all batches are the same for any number of shares, and so is the rounding.
    """
    num_batches = -(-num_items // BATCH)
    first, last = (num_batches * each // count for each in (number, number + 1))
    return first * BATCH, min(last * BATCH, num_items)


def rerank_split(
    system: System,
    split: Split,
    found: Embeddings,
    top: int,
    progress: Progress | None = None,
    *,
    proposal_weight: float | None = None,
    store: torch.device | None = None,
) -> TwoStageScores:
    """Re-rank the `top` candidates of every query by embeddings with the pair scores of a model.

    `proposal_weight` is the weight of the embeddings' scores relative to the pair scores, by
    default the model's own; 0 uses pair scores alone.
    """
    if not isinstance(system.model, Reranker):
        raise ValueError(
            f"{system.model.name} embeds and does not score pairs: re-ranking needs a model that "
            "does both, such as fusion"
        )
    parts = _parts_of_split(system, system.model, split, None, store or system.device)
    weight = system.model.proposal_weight if proposal_weight is None else proposal_weight
    return TwoStageScores(found.scores(), parts.scores(progress), top, weight)


@torch.no_grad()
def _parts_of_split(
    system: System,
    scorer: Reranker,
    split: Split,
    progress: Progress | None,
    store: torch.device,
) -> Parts:
    total = len(split.image_names) + len(split.captions)
    images: list[Tensor] = []
    words: list[Tensor] = []
    lengths: list[Tensor] = []
    with evaluating(scorer):
        for batch in images_to_embed(system, split):
            images.append(scorer.parts_of_images(batch.to(system.device)).float().to(store))
            _tell(progress, images, lengths, total)
        for tokens, counts in text_batches(split, system.encode, batch_size=BATCH):
            texts = scorer.parts_of_texts(tokens.to(system.device), counts).float()
            present = length_mask(counts, tokens.shape[1]).to(texts.device)
            words.append(texts[present].to(store))
            lengths.append(counts.cpu())
            _tell(progress, images, lengths, total)
    return Parts(
        scorer=scorer,
        images=torch.cat(images),
        words=torch.cat(words),
        lengths=torch.cat(lengths),
        image_ids=torch.arange(len(split.image_names)),
        text_ids=torch.from_numpy(split.image_of_caption),
        image_names=split.image_names,
        captions=split.captions,
        device=system.device,
    )


def _tell(
    progress: Progress | None, images: Sequence[Tensor], texts: Sequence[Tensor], total: int
) -> None:
    if progress:
        progress(sum(map(len, images)) + sum(map(len, texts)), total)
