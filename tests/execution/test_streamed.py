"""Streamed execution: what the score matrix gives, without a score matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from embedded import Embedded, embedded, outcome
from samples import STATISTICS
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import gradspace as gs
from gradspace.execution import choice, streamed
from gradspace.execution.block import Block, HardestNegatives, Wanted
from gradspace.execution.streamed import Streamed
from gradspace.objectives import Objective
from gradspace.objectives.contract import Reduction
from gradspace.objectives.statistics import Hardest, PositiveScores, Statistic, Sum


@pytest.mark.parametrize("tile", [7, 200])
def test_every_objective_is_exact(name: str, tile: int) -> None:
    batch = embedded()
    for reduction in ("sum", "mean"):
        options: dict[str, Any] = {"reduction": reduction}
        dense = outcome(gs.RetrievalLoss(name, execution="dense", **options), batch, scale=2.5)
        loss = gs.RetrievalLoss(name, execution="streamed", tile=tile, **options)
        torch.testing.assert_close(outcome(loss, batch, 2.5), dense, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("name", STATISTICS)
def test_blocks_within_tiles(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of several blocks of candidates, whole and cut off."""
    monkeypatch.setitem(streamed.BLOCK, "cpu", 4)
    batch = embedded(num_images=31, num_texts=45)
    dense = outcome(gs.RetrievalLoss(name, execution="dense"), batch)
    for tile in (1, 10, 32):
        loss = gs.RetrievalLoss(name, execution="streamed", tile=tile)
        torch.testing.assert_close(outcome(loss, batch), dense, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("length", [0.1, 2.5])
@pytest.mark.parametrize("name", STATISTICS)
def test_scores_far_from_cosines(name: str, length: float) -> None:
    """Exponentials whose sums neither fit nor vanish without a reference per query."""
    if name.endswith("sigmoid-ms"):  # which overflows there: docs/explanation/concepts.md
        length = min(length, 1.2)
    batch = embedded(length=length)
    dense = outcome(gs.RetrievalLoss(name, execution="dense", normalize=False), batch)
    loss = gs.RetrievalLoss(name, execution="streamed", tile=8, normalize=False)
    torch.testing.assert_close(outcome(loss, batch), dense, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", STATISTICS)
def test_equal_scores_have_equal_values(name: str) -> None:
    """Where several negatives are the hardest any of them may get the weight."""
    batch = embedded(num_images=12, num_texts=30, width=2)
    batch = batch._replace(images=batch.images.round(), texts=batch.texts.round())
    dense = outcome(gs.RetrievalLoss(name, execution="dense", normalize=False), batch)
    found = outcome(gs.RetrievalLoss(name, execution="streamed", tile=5, normalize=False), batch)
    torch.testing.assert_close(found.value, dense.value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", STATISTICS)
def test_pairs_by_position(name: str) -> None:
    batch = embedded(num_texts=23)
    for tile in (5, 64):
        streamed = gs.RetrievalLoss(name, execution="streamed", tile=tile)
        dense = gs.RetrievalLoss(name, execution="dense")
        found = outcome(streamed, batch, image_ids=None)
        torch.testing.assert_close(found, outcome(dense, batch, image_ids=None))


@pytest.mark.parametrize("name", STATISTICS)
def test_nothing_but_positives(name: str) -> None:
    batch = embedded(num_images=3, num_texts=4)._replace(
        image_ids=torch.zeros(3, dtype=torch.long), text_ids=torch.zeros(4, dtype=torch.long)
    )
    dense = outcome(gs.RetrievalLoss(name, execution="dense"), batch)
    found = outcome(gs.RetrievalLoss(name, execution="streamed", tile=2), batch)
    torch.testing.assert_close(found, dense)


@dataclass(frozen=True)
class AboveTheMean(Objective):
    """Sum over the negatives of max(s - mean of all queries' mean positive score + 1, 0)."""

    name = "above-the-mean"
    reduction: ClassVar[Reduction] = "sum"

    def statistics(self, positive: PositiveScores) -> tuple[Statistic, ...]:
        mean = positive.mean(positive.scores).mean().expand(len(positive.scores), 1)
        return (Sum(lambda s, m: (s - m + 1).relu(), mean),)

    def value(self, positive: PositiveScores, *statistics: Tensor) -> Tensor:
        return statistics[0].squeeze(1)


def test_one_number_for_all_queries_has_a_gradient_and_differs_between_directions() -> None:
    batch = embedded()
    dense = outcome(gs.RetrievalLoss(AboveTheMean(), execution="dense"), batch)
    found = outcome(gs.RetrievalLoss(AboveTheMean(), execution="streamed", tile=8), batch)
    torch.testing.assert_close(found, dense)


def test_not_a_number_is_not_hidden(name: str) -> None:
    """Not even where nobody looks for it: a query that sees one would count for nothing."""
    batch = embedded()
    batch.texts[7] = torch.nan
    for execution in ("dense", "streamed"):
        loss = gs.RetrievalLoss(name, execution=execution, tile=8, checks=False)
        assert loss(*batch).isnan(), execution


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.slow
def test_compiled_code_builds_no_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = embedded()
    loss = gs.RetrievalLoss("nt-xent", execution="streamed", tile=8)
    expected = outcome(loss, batch)
    monkeypatch.setattr(loss, "_of_matrix", None)
    compiled: Any = torch.compile(loss, backend="eager")
    torch.testing.assert_close(outcome(compiled, batch), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", STATISTICS)
def test_half_precision_is_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    batch = embedded(dtype=dtype)
    exact = batch._replace(images=batch.images.double(), texts=batch.texts.double())
    expected = outcome(gs.RetrievalLoss(name, execution="dense"), exact)
    found = outcome(gs.RetrievalLoss(name, execution="streamed", tile=16), batch)
    assert found.value.dtype == torch.float32
    assert found.by_images.dtype == found.by_texts.dtype == dtype
    torch.testing.assert_close(found.value.double(), expected.value, rtol=1e-4, atol=1e-4)
    rounding = torch.finfo(dtype).eps
    for got, wanted in zip(found[1:], expected[1:], strict=True):
        difference = (got.double() - wanted).norm() / wanted.norm().clamp(min=1e-9)
        assert difference < max(rounding, 1e-4)


@pytest.mark.parametrize("name", STATISTICS)
def test_the_same_input_gives_the_same_bits(name: str) -> None:
    batch = embedded(dtype=torch.float32)
    loss = gs.RetrievalLoss(name, execution="streamed", tile=16)
    for first, second in zip(outcome(loss, batch), outcome(loss, batch), strict=True):
        assert torch.equal(first, second)


def test_finds_the_hardest_negative_of_both_sides() -> None:
    batch = embedded()
    scores = batch.images @ batch.texts.t()
    negatives = scores.masked_fill(batch.image_ids[:, None] == batch.text_ids, -torch.inf)
    block = Block(*batch)
    (found,) = Streamed(tile=10).forward(block, [Wanted(Hardest(), Hardest())])
    assert isinstance(found.row, HardestNegatives)
    assert isinstance(found.column, HardestNegatives)
    assert torch.equal(found.row.index, negatives.argmax(1))
    assert torch.equal(found.column.index, negatives.argmax(0))
    torch.testing.assert_close(found.row.value, negatives.amax(1))
    torch.testing.assert_close(found.column.value, negatives.amax(0))


# --- memory -------------------------------------------------------------------------------------


class LargestTensor(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers the size of the largest tensor that any operation made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.size = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else [made]:
            if isinstance(one, Tensor):
                self.size = max(self.size, one.numel())
        return made


@pytest.mark.slow
@pytest.mark.parametrize("name", STATISTICS)
def test_no_matrix_of_scores_is_ever_made(name: str) -> None:
    """Nor anything else that grows faster than the batch."""
    sizes = []
    for number in (150, 300):
        batch = embedded(number, number, width=4, dtype=torch.float32)
        loss = gs.RetrievalLoss(name, execution="streamed", tile=16)
        with LargestTensor() as largest:
            outcome(loss, batch)
        sizes.append(largest.size)
    assert sizes[1] < 300 * 60  # a fifth of the matrix
    assert sizes[1] <= 2.2 * sizes[0]


def test_large_batches_are_streamed_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = embedded(dtype=torch.float32)
    with LargestTensor() as largest:
        outcome(gs.RetrievalLoss("triplet-hard"), batch)
    assert largest.size >= 23 * 57  # small batches are not
    monkeypatch.setitem(choice.SMALL, "cpu", 100)
    found = choice.choose_without_kernels("auto", batch.images, batch.texts, None)
    assert isinstance(found.executor, Streamed)


def test_out_of_memory_says_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("tried to allocate")

    batch = embedded()
    loss = gs.RetrievalLoss("nt-xent", execution="streamed", tile=8)
    value = loss(batch.images.requires_grad_(), batch.texts, batch.image_ids, batch.text_ids)
    monkeypatch.setattr(Streamed, "forward", fail)
    monkeypatch.setattr(Streamed, "backward", fail)
    with pytest.raises(torch.OutOfMemoryError, match=r"smaller tile, such as tile=1024"):
        loss(batch.images, batch.texts, batch.image_ids, batch.text_ids)
    with pytest.raises(torch.OutOfMemoryError, match=r"23 x 57 scores"):
        value.backward()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tile": 0}, "tile must be a positive whole number, got 0"),
        ({"execution": "fast"}, "execution must be one of auto, dense, streamed, triton"),
        ({"memory": 5, "execution": "dense"}, 'a memory does not work with execution="dense"'),
        ({"execution": "triton"}, "needs a CUDA device"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    batch = embedded()
    with pytest.raises(ValueError, match=message):
        gs.RetrievalLoss("triplet", **options)(batch.images, batch.texts, *batch[2:])


def test_a_batch_without_pairs_is_refused() -> None:
    batch: Embedded = embedded()
    loss = gs.RetrievalLoss("triplet", execution="streamed")
    with pytest.raises(ValueError, match="no image id equals a text id"):
        loss(batch.images, batch.texts, batch.image_ids, batch.text_ids + 1000)
