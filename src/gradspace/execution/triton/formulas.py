"""An objective as Triton functions of a few queries.

`Objective.statistics` and `Objective.value` are traced, and so are the derivatives that autograd
finds. A row function has the scores of every candidate in the place of slots, and the positives
are the valid ones; a query function has slots, and what tiles of the scores found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradspace.execution.triton import query_kernels, row_kernels
from gradspace.execution.triton.graphs import (
    UnsupportedTermError,
    compile_graph,
    compile_source,
    trace,
)
from gradspace.execution.triton.terms import translate
from gradspace.objectives.contract import Objective
from gradspace.objectives.statistics import (
    LOG_ZERO,
    Hardest,
    LogSumExp,
    PositiveScores,
    Statistic,
    Sum,
    Term,
)

QUERIES, SLOTS = 2, 3
"""Of the examples that formulas are traced on."""
POSITIVES = ("p", "positive", "num_negatives", "smallest")
ROW_INPUTS = (
    *("s", "positive", "negative", "lane", "work"),
    *("n", "m", "WEIGH: tl.constexpr", "IMAGES: tl.constexpr"),
)


QUERY_INPUTS = (
    *("p", "positive", "lane", "num_negatives", "smallest_of", "batch", "num_batch", "exists"),
    *("q", "num_queries", "tiles", "slot_slopes", "best", "best_at", "best_slopes", "hardest_at"),
    *("parts_a", "results_a", "slopes_a", "parts_b", "results_b", "slopes_b"),
    *("WEIGH: tl.constexpr", "COUNT: tl.constexpr"),
)


class Functions(NamedTuple):
    """Triton functions of an objective."""

    row: Any
    """Value and weights of some queries, from the scores of all their candidates."""
    query: Any
    """Value and slopes of some queries, from what tiles found; None if tiles cannot find it."""
    asks_batch: bool
    """Do they read the positives of the whole batch?"""
    wanted: tuple[Statistic, ...]
    """Of the examples: their kinds, and which have a column for every slot."""
    sloped: frozenset[int]
    """The statistics that the value has a gradient along."""
    fixed: bool
    """Are the statistics of all batches the same, whatever their positives?"""
    gives: bool
    """Does a term give a gradient to the positives' scores that it is given?"""


USED = {
    row_kernels: (
        *("hardest", "total", "log_sum_exp", "weigh_total", "weigh_log_sum_exp"),
        *("total_by_slot", "weigh_total_by_slot", "sum_in_batch", "smallest_in_batch"),
    ),
    query_kernels: (
        *("best_of_tiles", "sum_of_tiles", "sum_of_batch", "store_column", "store_slots"),
    ),
}
"""What the functions call."""


class _LimitFoundError(Exception):
    """Ends a trace where the limit of a sum over the batch is known."""

    def __init__(self, limit: Tensor) -> None:
        self.limit = limit


@dataclass(frozen=True)
class _Traced(PositiveScores):
    """Positives whose sums over others and over the batch are inputs of the traced function."""

    smallest: Tensor = None  # type: ignore[assignment]
    over_others: tuple[Tensor, ...] = ()
    over_batch: tuple[Tensor, ...] = ()
    terms: list[Term] | None = None
    """Of the sums over others, in the order they are asked for."""
    functions: list[Callable[[Tensor], Tensor]] | None = None
    """Of the sum over the batch."""
    asked: list[str] | None = None

    @property
    def smallest_in_batch(self) -> Tensor:
        if self.asked is not None:
            self.asked.append("smallest")
        return self.smallest

    def sum_over_others(self, term: Term) -> Tensor:
        assert self.terms is not None
        self.terms.append(term)
        return self.over_others[len(self.terms) - 1]

    def sum_in_batch(
        self, limit: Tensor, function: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        assert self.functions is not None
        self.functions.append(function)
        if not self.over_batch:
            raise _LimitFoundError(limit)
        return self.over_batch[0], self.over_batch[1]


def functions_of(objective: Objective) -> Functions:
    """Translate an objective, once for equal ones; UnsupportedTermError where it cannot be."""
    try:
        return _functions_of(_Key(objective))
    except (AttributeError, AssertionError, IndexError, TypeError, RuntimeError) as error:
        raise UnsupportedTermError(f"{objective}: {error}") from error


class _Key:
    """An objective by its identity or its parameters, which make it equal to others."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.key = (type(objective), repr(objective))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@lru_cache(maxsize=256)
def _functions_of(key: _Key) -> Functions:
    row, query = _RowWriter(key.objective), _QueryWriter(key.objective)
    function = row.write()
    sums = [one for one in row.wanted if not isinstance(one, Hardest)]
    sloped = {k for k in row.sloped if not isinstance(row.wanted[k], Hardest)}
    tiled = len(row.wanted) - len(sums) <= 1 and len(sums) <= 2 and len(sloped) <= 1
    return Functions(
        function,
        query.write() if tiled else None,
        row.of_batch is not None or bool(row.asked),
        row.wanted,
        frozenset(row.sloped),
        row.fixed(),
        any(row.gives(k) for k in sloped),
    )


def _column() -> Tensor:
    return torch.full((QUERIES, 1), 0.3)


def _matrix() -> Tensor:
    return torch.full((QUERIES, SLOTS), 0.2)


class _Writer:
    """Writes a function of an objective, line by line: what both kinds have in common."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {
            name: getattr(kernels, name) for kernels, names in USED.items() for name in names
        }
        self.sloped: set[int] = set()
        self.positives = (
            _matrix(),
            torch.ones(QUERIES, SLOTS, dtype=torch.bool),
            _column(),
            torch.tensor([0.2]),
        )
        self.asked: list[str] = []
        with torch.no_grad():
            self.wanted = tuple(objective.statistics(self._traced(*self.positives)))
        self.others = self._ask_value().terms or []
        functions = self._ask_value().functions or []
        if len(functions) > 1:
            raise UnsupportedTermError("more than one sum over the batch")
        self.of_batch = functions[0] if functions else None

    # --- what is asked --------------------------------------------------------------------------

    def _traced(self, p: Tensor, valid: Tensor, num: Tensor, smallest: Tensor) -> _Traced:
        return _Traced(
            *(p, valid, num, torch.empty(0)),
            smallest=smallest,
            terms=[],
            functions=[],
            asked=self.asked,
        )

    def _ask_value(self) -> _Traced:
        """Call value once to see what it asks of the positives."""
        traced = replace(
            self._traced(*self.positives),
            over_others=tuple(_matrix() for _ in range(9)),
            over_batch=(_column(), _column()),
        )
        with torch.no_grad():
            self.objective.value(traced, *map(_example, self.wanted))
        return traced

    # --- lines ----------------------------------------------------------------------------------

    def _value(self, sum_in_batch: str) -> None:
        """value, and under WEIGH of_X, its slope along every X that it depends on."""
        inputs = [f"stat_{k}" for k in range(len(self.wanted))]
        examples = [*map(_example, self.wanted)]
        inputs += [f"other_{k}" for k in range(len(self.others))]
        examples += [_matrix() for _ in self.others]
        names = (*POSITIVES, *inputs)
        if self.of_batch is not None:
            self._add("limit", "limit", names, self._limit, *self.positives, *examples)
            of = self.of_batch
            graph = trace(lambda r: (of(r.double()).float(),), _matrix(), differentiate=False)
            self.scope["OF_BATCH"] = compile_graph("of_batch", ("r",), graph)
            self.lines.append(f"below, num_below = {sum_in_batch}")
            names, examples = (*names, "below", "num_below"), [*examples, _column(), _column()]
        self._add("value", "value", names, self._values, *self.positives, *examples)
        slopes = self._slopes(examples)
        self.sloped = {k - 1 for k in slopes if 0 < k <= len(self.wanted)}
        asked = ["p", *inputs]
        self.lines.append("if WEIGH:")
        start = len(self.lines)
        if slopes:
            self._add(
                ", ".join(f"of_{asked[k]}" for k in slopes),
                "slopes",
                names,
                lambda *a: tuple(self._differentiate(a)[k] for k in slopes),
                *self.positives,
                *examples,
                differentiate=True,
            )
        self._weights([asked[k] for k in slopes])
        self.lines[start:] = [f"    {line}" for line in self.lines[start:]]

    def _weights(self, known: Sequence[str]) -> None:
        """From the slopes of the value that are known, under WEIGH."""
        raise NotImplementedError

    def _other(self, k: int, term: Term, scores: str) -> None:
        translated = translate(term, 0.0)
        self.scope |= {f"OTHER_{k}": translated.term, f"OTHER_SLOPES_{k}": translated.derivatives}
        self.lines.append(
            f"other_{k} = total_by_slot({scores}, positive, positive, lane, p, OTHER_{k})"
        )

    def _other_slopes(self, k: int, scores: str) -> str:
        """What the sum over other positives gives to all of them."""
        self.lines.append(
            f"own_{k}, of_own_{k} = weigh_total_by_slot("
            f"{scores}, positive, positive, lane, p, of_other_{k}, OTHER_SLOPES_{k})"
        )
        return f"own_{k} + tl.where(positive, of_own_{k}, 0.0)"

    def _add(
        self,
        results: str,
        name: str,
        inputs: Sequence[str],
        function: Callable[..., Any],
        *examples: Tensor,
        differentiate: bool = False,
    ) -> None:
        """A line that calls the translation of a torch function."""
        graph = trace(function, *examples, differentiate=differentiate)
        compiled = compile_graph(name.partition("_")[0], inputs, graph)
        self.scope[compiled.__name__] = compiled
        self.lines.append(f"{results} = {compiled.__name__}({', '.join(inputs)})")

    # --- what is traced -------------------------------------------------------------------------

    def _given(self, k: int) -> Callable[..., tuple[Tensor, ...]]:
        def given(*positives: Tensor) -> tuple[Tensor, ...]:
            one = self.objective.statistics(self._traced(*positives))[k]
            assert not isinstance(one, Hardest)
            return (one.given + torch.zeros_like(one.given),)  # a node of the graph

        return given

    def gives(self, k: int) -> bool:
        """Has what a term is given a gradient along the positives' scores?"""
        with torch.enable_grad():
            p, *rest = self.positives
            one = self.objective.statistics(self._traced(p.clone().requires_grad_(), *rest))[k]
            assert not isinstance(one, Hardest)
            return one.given.requires_grad

    def fixed(self) -> bool:
        """Is every term given one number that does not depend on the positives?"""
        p, valid, num, smallest = self.positives
        others = self._traced(p + 0.1, valid.logical_not(), num + 1, smallest - 0.3)
        return all(
            isinstance(one, Hardest) or (one.shared and torch.equal(one.given, other.given))
            for one, other in zip(self.wanted, self.objective.statistics(others), strict=True)
            if not isinstance(other, Hardest)
        )

    def _pull_back(self, k: int, inputs: Sequence[Tensor]) -> Tensor:
        p, *rest, of_given = inputs
        p = p.requires_grad_()
        one = self.objective.statistics(self._traced(p, *rest))[k]
        assert not isinstance(one, Hardest)
        return torch.autograd.grad(one.given, p, of_given)[0] + 0 * p.detach()

    def _split(self, inputs: Sequence[Tensor]) -> tuple[_Traced, Sequence[Tensor]]:
        """Positives and statistics of the inputs of value."""
        first, last = len(POSITIVES), len(POSITIVES) + len(self.wanted)
        end = last + len(self.others)
        traced = replace(
            self._traced(*inputs[:first]),
            over_others=tuple(inputs[last:end]),
            over_batch=tuple(inputs[end:]),
        )
        return traced, inputs[first:last]

    def _limit(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        traced, statistics = self._split(inputs)
        try:
            self.objective.value(traced, *statistics)
        except _LimitFoundError as found:
            return (found.limit.float(),)
        raise AssertionError("no sum over the batch")

    def _values(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        traced, statistics = self._split(inputs)
        return (self.objective.value(traced, *statistics),)

    def _differentiate(self, inputs: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        """Along the positives' scores, the statistics, and the sums over others."""
        p, valid, num, smallest, *rest = inputs
        num_slopes = len(self.wanted) + len(self.others)
        p, along = p.requires_grad_(), [x.requires_grad_() for x in rest[:num_slopes]]
        (value,) = self._values(p, valid, num, smallest, *along, *rest[num_slopes:])
        if not value.requires_grad:
            return (None,) * (1 + num_slopes)
        return torch.autograd.grad(value, [p, *along], torch.ones_like(value), allow_unused=True)

    def _slopes(self, examples: Sequence[Tensor]) -> list[int]:
        """Which of these there are."""
        with torch.enable_grad():
            copies = [x.clone() for x in (*self.positives, *examples)]
            found = self._differentiate(copies)
        return [k for k, slope in enumerate(found) if slope is not None]


class _RowWriter(_Writer):
    """From scores s of all candidates to value and weights."""

    def write(self) -> Any:
        self.lines += [
            "p = tl.where(positive, s, 0.0)",
            "num_negatives = tl.sum(negative.to(tl.float32), 1, keep_dims=True)",
            "smallest = 0.0",
        ]
        if self.of_batch is not None or self.asked:
            self.lines.append("smallest = smallest_in_batch(work, n, m, IMAGES)")
        self._statistics()
        for k, term in enumerate(self.others):
            self._other(k, term, "s")
        self.lines.append("weights = tl.zeros(s.shape, tl.float32)")
        self._value("sum_in_batch(limit, work, n, m, OF_BATCH, IMAGES)")
        self.lines.append("return value, weights")
        return compile_source("row", ROW_INPUTS, self.lines, self.scope)

    def _statistics(self) -> None:
        """given_k, what the term of statistic k is given; stat_k, what comes out of it."""
        for k, one in enumerate(self.wanted):
            if isinstance(one, Hardest):
                self.lines.append(f"stat_{k}, at_{k} = hardest(s, negative)")
                continue
            self._add(f"given_{k}", f"given_{k}", POSITIVES, self._given(k), *self.positives)
            translated = translate(one.term, 0.0 if isinstance(one, Sum) else LOG_ZERO)
            self.scope |= {f"TERM_{k}": translated.term, f"SLOPES_{k}": translated.derivatives}
            if not _by_slot(one):
                kind = "total" if isinstance(one, Sum) else "log_sum_exp"
                self.lines.append(f"stat_{k} = {kind}(s, negative, given_{k}, TERM_{k})")
            elif isinstance(one, Sum):
                self.lines.append(
                    f"stat_{k} = total_by_slot(s, negative, positive, lane, given_{k}, TERM_{k})"
                )
            else:
                raise UnsupportedTermError("a LogSumExp of every slot")

    def _weights(self, known: Sequence[str]) -> None:
        if "p" in known:
            self.lines.append("weights += tl.where(positive, of_p, 0.0)")
        back: list[int] = []
        for k, one in enumerate(self.wanted):
            name = f"stat_{k}"
            if name not in known:
                continue
            if isinstance(one, Hardest):
                self.lines.append(
                    f"weights += tl.where((lane == at_{k}) & negative, of_{name}, 0.0)"
                )
                continue
            head = f"part_{k}, of_given_{k} ="
            if _by_slot(one):
                call = f"weigh_total_by_slot(s, negative, positive, lane, given_{k}, of_{name}, "
            elif isinstance(one, Sum):
                call = f"weigh_total(s, negative, given_{k}, of_{name}, "
            else:
                call = f"weigh_log_sum_exp(s, negative, given_{k}, of_{name}, {name}, TERM_{k}, "
            self.lines += [f"{head} {call}SLOPES_{k})", f"weights += part_{k}"]
            if self.gives(k):
                back.append(k)
        for k in range(len(self.others)):
            if f"other_{k}" in known:
                self.lines.append(f"weights += {self._other_slopes(k, 's')}")
        for k in back:
            self._add_back(k)
        if not known:
            self.lines.append("pass")

    def _add_back(self, k: int) -> None:
        """What a term gives to the positives' scores that it was given."""
        example = _matrix() if _by_slot(self.wanted[k]) else _column()
        self._add(
            f"back_{k}",
            "back",
            (*POSITIVES, f"of_given_{k}"),
            lambda *inputs: (self._pull_back(k, inputs),),
            *self.positives,
            example,
            differentiate=True,
        )
        self.lines.append(f"weights += tl.where(positive, back_{k}, 0.0)")


class _QueryWriter(_Writer):
    """From the parts that tiles found of every statistic to value and slopes."""

    def write(self) -> Any:
        asks_batch = self.of_batch is not None or self.asked
        self.lines.append(f"smallest = {'tl.load(smallest_of)' if asks_batch else '0.0'}")
        names = iter("ab")
        self.parts: dict[int, str] = {}
        for k, one in enumerate(self.wanted):
            if isinstance(one, Hardest):
                self.lines += [
                    f"stat_{k}, at_{k} = best_of_tiles(best, best_at, q, num_queries, tiles)",
                    f"store_column(hardest_at, at_{k}, q, num_queries)",
                ]
                continue
            self.parts[k] = next(names)
            columns, log = self._columns(k), isinstance(one, LogSumExp)
            self.lines.append(
                f"stat_{k} = sum_of_tiles("
                f"parts_{self.parts[k]}, q, lane, num_queries, tiles, {columns}, {log})"
            )
        for k, term in enumerate(self.others):
            self._other(k, term, "p")
        self._value("sum_of_batch(limit, batch, num_batch, OF_BATCH)")
        self.lines.append("return value")
        return compile_source("query", QUERY_INPUTS, self.lines, self.scope)

    def _columns(self, k: int) -> str:
        return "COUNT" if _by_slot(self.wanted[k]) else "1"

    def _weights(self, known: Sequence[str]) -> None:
        """Written to memory; a query without a positive has none."""
        of_p = "of_p" if "p" in known else "tl.zeros(p.shape, tl.float32)"
        self.lines.append(f"along_p = tl.where(positive, {of_p}, 0.0)")
        for k in range(len(self.others)):
            if f"other_{k}" in known:
                self.lines.append(f"along_p += {self._other_slopes(k, 'p')}")
        self.lines.append("store_slots(slot_slopes, along_p, q, lane, num_queries, COUNT)")
        for k, one in enumerate(self.wanted):
            if f"stat_{k}" not in known:
                continue
            slope = f"tl.where(exists, of_stat_{k}, 0.0)"
            if isinstance(one, Hardest):
                self.lines.append(f"store_column(best_slopes, {slope}, q, num_queries)")
                continue
            name, columns = self.parts[k], self._columns(k)
            for what, of in ((f"results_{name}", f"stat_{k}"), (f"slopes_{name}", slope)):
                self.lines.append(f"store_slots({what}, {of}, q, lane, num_queries, {columns})")


def _by_slot(one: Statistic) -> bool:
    """Is its term given another number for every positive?"""
    return not isinstance(one, Hardest) and one.given.shape[1] > 1


def _example(one: Statistic) -> Tensor:
    return _matrix() if _by_slot(one) else _column()
