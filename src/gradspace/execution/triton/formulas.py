"""Translation of an objective to Triton functions of a few queries.

`Objective.statistics` and `Objective.value` are traced together with their autograd derivatives. A
row function works on the scores of all candidates, each of them a slot whose valid ones are the
positives; a query function works on slots and the results of score tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from torch import Tensor

from gradspace.execution.triton import query_kernels, row_kernels
from gradspace.execution.triton.graphs import (
    UnsupportedTermError,
    compile_graph,
    compile_source,
    trace,
)
from gradspace.execution.triton.terms import translate
from gradspace.execution.triton.tracing import (
    POSITIVES,
    TracedObjective,
    by_slot,
    column,
    example_of,
    matrix,
)
from gradspace.objectives.contract import Objective
from gradspace.objectives.statistics import (
    LOG_ZERO,
    Hardest,
    LogSumExp,
    Statistic,
    Sum,
    Term,
)

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
    """Triton functions of an objective, and what their callers have to know."""

    row: Any
    """Value and weights of some queries, from the scores of all their candidates."""
    query: Any
    """Value and slopes of some queries, from the results of tiles; None if tiles cannot do it."""
    asks_batch: bool
    """Whether they read the positives of the whole batch."""
    wanted: tuple[Statistic, ...]
    """Statistics of the examples; their kinds and numbers of columns hold for any batch."""
    sloped: frozenset[int]
    """Indices of the statistics along which the value has a gradient."""
    fixed: bool
    """Whether the statistics are the same for all batches, whatever their positives."""
    gives: bool
    """Whether a term passes a gradient back to the positives' scores that it is given."""


USED = {
    row_kernels: (
        *("hardest", "total", "log_sum_exp", "weigh_total", "weigh_log_sum_exp"),
        *("total_by_slot", "weigh_total_by_slot", "sum_in_batch", "smallest_in_batch"),
    ),
    query_kernels: (
        *("best_of_tiles", "sum_of_tiles", "sum_of_batch", "store_column", "store_slots"),
    ),
}
"""Kernel functions that the generated functions call."""


def functions_of(objective: Objective) -> Functions:
    """Translate an objective, once for equal ones, or raise UnsupportedTermError."""
    try:
        return _functions_of(_Key(objective))
    except (AttributeError, AssertionError, IndexError, TypeError, RuntimeError) as error:
        raise UnsupportedTermError(f"{objective}: {error}") from error


class _Key:
    """An objective as a cache key: two are equal if their class and parameters are."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.key = (type(objective), repr(objective))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@lru_cache(maxsize=256)
def _functions_of(key: _Key) -> Functions:
    traced = TracedObjective(key.objective)
    row, query = _RowWriter(traced), _QueryWriter(traced)
    function = row.write()
    sums = [one for one in traced.wanted if not isinstance(one, Hardest)]
    sloped = {k for k in row.sloped if not isinstance(traced.wanted[k], Hardest)}
    tiled = len(traced.wanted) - len(sums) <= 1 and len(sums) <= 2 and len(sloped) <= 1
    return Functions(
        function,
        query.write() if tiled else None,
        traced.of_batch is not None or bool(traced.asked),
        traced.wanted,
        frozenset(row.sloped),
        traced.fixed(),
        any(traced.gives(k) for k in sloped),
    )


class _Writer:
    """Writes a function of an objective line by line: the parts common to both kinds."""

    def __init__(self, traced: TracedObjective) -> None:
        self.traced, self.wanted, self.positives = traced, traced.wanted, traced.positives
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {
            name: getattr(kernels, name) for kernels, names in USED.items() for name in names
        }
        self.sloped: set[int] = set()

    # --- lines ----------------------------------------------------------------------------------

    def _value(self, sum_in_batch: str) -> None:
        """Write `value` and, under WEIGH, its slope `of_X` along every X it depends on."""
        inputs = [f"stat_{k}" for k in range(len(self.wanted))]
        examples = [*map(example_of, self.wanted)]
        inputs += [f"other_{k}" for k in range(len(self.traced.others))]
        examples += [matrix() for _ in self.traced.others]
        names = (*POSITIVES, *inputs)
        if self.traced.of_batch is not None:
            self._add("limit", "limit", names, self.traced.limit, *self.positives, *examples)
            of = self.traced.of_batch
            graph = trace(lambda r: (of(r.double()).float(),), matrix(), differentiate=False)
            self.scope["OF_BATCH"] = compile_graph("of_batch", ("r",), graph)
            self.lines.append(f"below, num_below = {sum_in_batch}")
            names, examples = (*names, "below", "num_below"), [*examples, column(), column()]
        self._add("value", "value", names, self.traced.values, *self.positives, *examples)
        slopes = self.traced.slopes(examples)
        self.sloped = {k - 1 for k in slopes if 0 < k <= len(self.wanted)}
        asked = ["p", *inputs]
        self.lines.append("if WEIGH:")
        start = len(self.lines)
        if slopes:
            self._add(
                ", ".join(f"of_{asked[k]}" for k in slopes),
                "slopes",
                names,
                lambda *a: tuple(self.traced.differentiate(a)[k] for k in slopes),
                *self.positives,
                *examples,
                differentiate=True,
            )
        self._weights([asked[k] for k in slopes])
        self.lines[start:] = [f"    {line}" for line in self.lines[start:]]

    def _weights(self, known: Sequence[str]) -> None:
        """Write the weights, under WEIGH, from the slopes of the value that are known."""
        raise NotImplementedError

    def _other(self, k: int, term: Term, scores: str) -> None:
        translated = translate(term, 0.0)
        self.scope |= {f"OTHER_{k}": translated.term, f"OTHER_SLOPES_{k}": translated.derivatives}
        self.lines.append(
            f"other_{k} = total_by_slot({scores}, positive, positive, lane, p, OTHER_{k})"
        )

    def _other_slopes(self, k: int, scores: str) -> str:
        """Expression for what the sum over the other positives gives to all of them."""
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
        """Translate a torch function, and write a line that calls it."""
        graph = trace(function, *examples, differentiate=differentiate)
        compiled = compile_graph(name.partition("_")[0], inputs, graph)
        self.scope[compiled.__name__] = compiled
        self.lines.append(f"{results} = {compiled.__name__}({', '.join(inputs)})")


class _RowWriter(_Writer):
    """Writes the function from the scores `s` of all candidates to value and weights."""

    def write(self) -> Any:
        self.lines += [
            "p = tl.where(positive, s, 0.0)",
            "num_negatives = tl.sum(negative.to(tl.float32), 1, keep_dims=True)",
            "smallest = 0.0",
        ]
        if self.traced.of_batch is not None or self.traced.asked:
            self.lines.append("smallest = smallest_in_batch(work, n, m, IMAGES)")
        self._statistics()
        for k, term in enumerate(self.traced.others):
            self._other(k, term, "s")
        self.lines.append("weights = tl.zeros(s.shape, tl.float32)")
        self._value("sum_in_batch(limit, work, n, m, OF_BATCH, IMAGES)")
        self.lines.append("return value, weights")
        return compile_source("row", ROW_INPUTS, self.lines, self.scope)

    def _statistics(self) -> None:
        """Write given_k, the numbers given to the term of statistic k, and stat_k, its result."""
        for k, one in enumerate(self.wanted):
            if isinstance(one, Hardest):
                self.lines.append(f"stat_{k}, at_{k} = hardest(s, negative)")
                continue
            self._add(f"given_{k}", f"given_{k}", POSITIVES, self.traced.given(k), *self.positives)
            translated = translate(one.term, 0.0 if isinstance(one, Sum) else LOG_ZERO)
            self.scope |= {f"TERM_{k}": translated.term, f"SLOPES_{k}": translated.derivatives}
            if not by_slot(one):
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
            if by_slot(one):
                call = f"weigh_total_by_slot(s, negative, positive, lane, given_{k}, of_{name}, "
            elif isinstance(one, Sum):
                call = f"weigh_total(s, negative, given_{k}, of_{name}, "
            else:
                call = f"weigh_log_sum_exp(s, negative, given_{k}, of_{name}, {name}, TERM_{k}, "
            self.lines += [f"{head} {call}SLOPES_{k})", f"weights += part_{k}"]
            if self.traced.gives(k):
                back.append(k)
        for k in range(len(self.traced.others)):
            if f"other_{k}" in known:
                self.lines.append(f"weights += {self._other_slopes(k, 's')}")
        for k in back:
            self._add_back(k)
        if not known:
            self.lines.append("pass")

    def _add_back(self, k: int) -> None:
        """Write the gradient that a term passes back to the positives' scores it was given."""
        example = matrix() if by_slot(self.wanted[k]) else column()
        self._add(
            f"back_{k}",
            "back",
            (*POSITIVES, f"of_given_{k}"),
            lambda *inputs: (self.traced.pull_back(k, inputs),),
            *self.positives,
            example,
            differentiate=True,
        )
        self.lines.append(f"weights += tl.where(positive, back_{k}, 0.0)")


class _QueryWriter(_Writer):
    """Writes the function from the tiles' parts of every statistic to value and slopes."""

    def write(self) -> Any:
        asks_batch = self.traced.of_batch is not None or self.traced.asked
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
        for k, term in enumerate(self.traced.others):
            self._other(k, term, "p")
        self._value("sum_of_batch(limit, batch, num_batch, OF_BATCH)")
        self.lines.append("return value")
        return compile_source("query", QUERY_INPUTS, self.lines, self.scope)

    def _columns(self, k: int) -> str:
        return "COUNT" if by_slot(self.wanted[k]) else "1"

    def _weights(self, known: Sequence[str]) -> None:
        """Write lines that store the slopes in memory, 0 for a query without a positive."""
        of_p = "of_p" if "p" in known else "tl.zeros(p.shape, tl.float32)"
        self.lines.append(f"along_p = tl.where(positive, {of_p}, 0.0)")
        for k in range(len(self.traced.others)):
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
