"""Training on mined negatives: the lists of a run, the rows added to a batch, and its loss.

A batch of n pairs (I, T) becomes one of 3 n true pairs, embedded in one pass: (I, T), then (I-, T~)
and (I~, T-), which are the mined image with a caption of its own and the mined caption with its
own image.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from torch import Tensor

from gradspace import processes
from gradspace.data.dataset import Split
from gradspace.data.order import Plan
from gradspace.files import link_or_copy
from gradspace.loss.mined import Offline
from gradspace.mining.lists import MinedLists, load_lists
from gradspace.mining.sampling import Sampling, draw_offline
from gradspace.runs.folder import Run
from gradspace.runs.recipe_tables import OfflineRecipe


@dataclass(frozen=True)
class Mined:
    """Lists of a run, checked against its training split."""

    lists: MinedLists
    split: Split
    sampling: Sampling

    def extend(self, plan: Plan, *, seed: int, epoch: int) -> Plan:
        """Append to the pairs of a batch those that are drawn for them."""
        drawn = draw_offline(
            self.lists, self.split, self.sampling, plan.images, plan.captions, seed, epoch
        )
        steps = np.arange(3)[:, None] * len(self.split.captions)
        return Plan(
            images=np.concatenate([plan.images, drawn.images, drawn.images_of_texts]),
            captions=np.concatenate([plan.captions, drawn.texts_of_images, drawn.texts]),
            items=(plan.items[None, :] + steps).ravel(),
        )


def split_extended(
    images: Tensor, texts: Tensor, image_ids: Tensor, text_ids: Tensor
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], Offline]:
    """Separate the pairs of an extended batch, with their ids, from those drawn for them."""
    own_images, mined_images, images_of_texts = images.chunk(3)
    own_texts, texts_of_images, mined_texts = texts.chunk(3)
    own, of_mined_images, of_images = image_ids.chunk(3)
    own_text, of_texts, of_mined_texts = text_ids.chunk(3)
    offline = Offline(
        images=mined_images,
        texts=mined_texts,
        images_of_texts=images_of_texts,
        texts_of_images=texts_of_images,
        image_ids=of_mined_images,
        text_ids=of_mined_texts,
        ids_of_texts=of_texts,
        ids_of_images=of_images,
    )
    return (own_images, own_texts, own, own_text), offline


# --- the lists of a run -------------------------------------------------------------------------


def open_mined(run: Run, recipe: OfflineRecipe, split: Split) -> Mined:
    """Open the lists in the folder of a run; those that the recipe names are copied there first."""
    if processes.is_first() and not run.offline.exists() and recipe.lists is not None:
        load_lists(recipe.lists).check_matches(split)
        link_or_copy(recipe.lists, run.offline)
    processes.any_of(False)  # wait until the first process has written the lists
    if not run.offline.exists():
        raise ValueError(
            "there are no mined negatives yet: give offline.lists, a file that `gradspace mine` "
            "writes"
        )
    lists = load_lists(run.offline)
    lists.check_matches(split)
    settings = recipe.model_dump(include={field.name for field in fields(Sampling)})
    return Mined(lists, split, Sampling(**settings))


def is_due(recipe: OfflineRecipe, epoch: int) -> bool:
    """Whether lists are mined anew before this epoch."""
    return recipe.every is not None and epoch > 0 and epoch % recipe.every == 0
