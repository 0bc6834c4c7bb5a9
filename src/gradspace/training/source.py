"""Source of a training's batches: a split, with its mined negatives, or a stream."""

from __future__ import annotations

from functools import partial
from typing import Any

from gradspace import processes
from gradspace.data.batches import Batch, training_batches
from gradspace.data.captions import EncodedCaptions
from gradspace.data.dataset import Dataset
from gradspace.data.loader import Loader
from gradspace.data.pair_ids import PairIds
from gradspace.data.shards.order import Bookmark
from gradspace.data.shards.stream import StreamBatches, stream_batches
from gradspace.runs.data import recipe_ids
from gradspace.runs.folder import Run
from gradspace.runs.mine import mine_run
from gradspace.runs.recipe import Recipe
from gradspace.runs.system import System
from gradspace.training.second_round import Mined, is_due, open_mined
from gradspace.training.sharing import gathered
from gradspace.training.state import TrainingState
from gradspace.training.streamed import check_shards, note_shards


class BatchSource:
    """Batches of any epoch, from any batch on."""

    def __init__(self, recipe: Recipe, dataset: Dataset, system: System, run: Run) -> None:
        self.recipe = recipe
        self.dataset = dataset
        self.system = system
        self.run = run
        self.stream = dataset.stream
        self.mined = self._open_mined()
        self.pair_ids = self._pair_ids()
        known = [] if self.stream else dataset.split("train").captions
        self.captions = EncodedCaptions(system.encode, known)

    def _pair_ids(self) -> PairIds | None:
        """Match positives beyond an image's own captions, if the recipe asks for it."""
        if self.stream is None:
            return recipe_ids(self.recipe, self.dataset.split("train"))
        if self.recipe.objective.positives == "text":
            raise ValueError(
                'objective.positives = "text" compares all training captions, which a stream does '
                'not have at once: leave data.stream out, or choose "ids"'
            )
        return None

    def _open_mined(self) -> Mined | None:
        if self.recipe.offline is None:
            return None
        return open_mined(self.run, self.recipe.offline, self.dataset.split("train"))

    def mine_anew(self, epoch: int, evaluated: System) -> None:
        """Mine new lists with the current weights, if the recipe asks for it.

        They are saved in the folder of the run before a step uses them, so that a run resumed
        within the epoch has the same lists.
        """
        offline = self.recipe.offline
        if offline is None or not is_due(offline, epoch):
            return
        with gathered(self.system.model):
            mine_run(
                evaluated,
                self.dataset,
                self.run.offline,
                top_texts=offline.num_texts,
                top_images=offline.num_images,
                source={"epoch": str(epoch)},
            )
        self.mined = self._open_mined()

    def go_on(self, state: TrainingState) -> None:
        """Find the place in a stream where training starts or resumes."""
        if self.stream is not None:
            check_shards(self.run, self.stream.shards)
            self.stream.marks[:] = [Bookmark(*state.bookmark)]

    def bookmark(self, state: TrainingState) -> Bookmark:
        """Return the bookmark by which a checkpoint finds the next batch of a stream."""
        if self.stream is None:
            return Bookmark()
        note_shards(self.run, self.stream.shards)
        return self.stream.bookmark(self.recipe.training.batch_size, state.epoch, state.batch)

    def batches(self, epoch: int, start_batch: int) -> Loader[Batch] | StreamBatches:
        """Make this process's part of the remaining batches of an epoch."""
        training = self.recipe.training
        asked: dict[str, Any] = {
            "batch_size": training.batch_size,
            "captions_per_image": training.captions_per_image,
            "seed": self.recipe.seed,
            "epoch": epoch,
            "start_batch": start_batch,
            "reading": self.system.training_reading,
            "num_workers": training.num_workers,
            "pin_memory": self.system.device.type == "cuda",
            "rank": processes.rank(),
            "world_size": processes.world_size(),
        }
        if self.stream is not None:
            return stream_batches(self.stream, self.system.encode, **asked)
        if self.mined is not None:
            asked["extend"] = partial(self.mined.extend, seed=self.recipe.seed, epoch=epoch)
        return training_batches(self.dataset.split("train"), self.captions, **asked)
