"""From a split to what is scored of it: embeddings, or the parts that a model scores in pairs."""

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
"""Of a batch, where a network makes maps of them, which take much memory; divides BATCH."""


def represent_split(
    system: System,
    split: Split,
    progress: Progress | None = None,
    *,
    store: torch.device | None = None,
) -> Represented:
    """Every image and every caption of a split, in order, by a model of either kind.

    `store` is where parts are kept: of a large split, in the memory of the machine.
    """
    if isinstance(system.model, PairScorer):
        return _parts_of_split(system, system.model, split, progress, store or system.device)
    return embed_split(system, split, progress)


@torch.inference_mode()
def embed_split(system: System, split: Split, progress: Progress | None = None) -> Embeddings:
    """Every image and every caption of a split, in order.

    Of several processes each embeds a share, and all get all.
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
    """What the model reads of images start .. stop - 1 of a split, in order."""
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
    """First and last (not included) of the items that are share `number` of `count`: whole batches.

    Every batch is then the same for any number of shares, and so is every rounding.
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
    """The `top` candidates of every query by the embeddings of a split, in the order of a model.

    `proposal_weight` is what the embeddings' scores count beside the model's own, by default what
    the model says: 0 goes by the scores of pairs alone.
    """
    if not isinstance(system.model, Reranker):
        raise ValueError(
            f"{system.model.name} embeds and scores no pairs: re-ranking needs a model that does "
            "both, such as fusion"
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
