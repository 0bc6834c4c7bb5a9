"""Is one objective better than another, or was it luck? Tests over queries and seeds.

A difference between two objectives can come from chance in two ways: which queries are in the test
set, and which seeds the models were trained with. Both enter the test and the interval.

* Queries. Without a difference, the results of the two objectives for one query may be swapped:
  random signs on the difference of their seed means (a paired permutation test). For the interval,
  queries are drawn with replacement, the same ones for both objectives (a paired bootstrap).
* Seeds. s^2 is the variance of the run means around their objective's mean, pooled over both, with
  nu = (S_a - 1) + (S_b - 1) degrees of freedom. A part m/N of it is no seed noise: runs differ in
  single queries (mean square m of the interaction query x run), which the query part already
  holds. What the seeds add is drawn as z sqrt(max(0, s^2 nu/chi2 - m/N) (1/S_a + 1/S_b)), with z
  standard normal and chi2 from the distribution of that name with nu degrees of freedom: few seeds
  make heavy tails, as in Student's t.
* The null values are sums of both parts: p = (1 + number of |null| >= |observed|) / (1 + draws).
  The interval holds the middle 95 % of bootstrapped differences plus the seed part.
* Many comparisons: `corrected` is p after Benjamini and Hochberg (1995). Of the differences called
  real at `corrected` < 0.05, about 5 % at most are expected not to be.

With one seed each there is no seed part: p is then about these very models on other queries, not
about their objectives. If one has a single seed, the spread of the other stands for both.

Decisions, by simulation. Relabelling the runs at random was tried for the seed part: with three
runs each it is 20 % too wide in variance, and without subtracting m/N it counts the interaction
twice. Its false alarm rate fell to 1 % where 5 % are allowed, and with three seeds it missed 10 to
15 of 100 real differences that are found now. Subtracting m/N from s^2 before chi2 is drawn gave
8 % false alarms with two seeds.

The pooled s^2 takes objectives to be equally sensitive to their seeds. If only one is, three seeds
each still give 8 % false alarms at worst, but two seeds of a wild objective against five of a calm
one 24 %, and one seed against five 50 %: train all with the same number of seeds. Welch's test
mends most of the 24 %, but finds clearly less with two or three seeds each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, groupby

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Results = Mapping[str, Floats]
"""objective name -> [seeds, queries], higher is better."""

CHUNK = 2**21
"""Random numbers that are held at a time (16 MB as float64)."""


@dataclass(frozen=True)
class Difference:
    """first - second."""

    first: str
    second: str
    mean: float
    error: float
    """Standard error over queries and seeds."""
    low: float
    """95 % interval, of this comparison alone."""
    high: float
    p: float
    """Two-sided, of this comparison alone."""
    corrected: float
    """p with the other comparisons in mind."""


def compare_all(
    results: Results, *, num_resamples: int = 10_000, seed: int = 0
) -> list[Difference]:
    """All pairs of objectives, in the order given.

    A result is [seeds, queries], for example 100 where a query found its match and 0 elsewhere: the
    mean over everything is the metric. The queries are the same, in the same order, for all.

    >>> hits = np.random.default_rng(0).random((2, 3, 500))
    >>> [found] = compare_all({"a": 100.0 * (hits[0] < 0.6), "b": 100.0 * (hits[1] < 0.4)})
    >>> found.first, found.second, found.low < found.mean < found.high, found.p < 0.05
    ('a', 'b', True, True)
    """
    _check(results, num_resamples)
    summaries = {name: _summary(values) for name, values in results.items()}
    per_query = np.stack([summary.per_query for summary in summaries.values()], 1)
    draw = np.random.default_rng
    flipped = _resampled_means(per_query, num_resamples, _signs, draw([seed, 0]))
    redrawn = _resampled_means(per_query, num_resamples, _counts, draw([seed, 1]))
    differences: list[Difference] = []
    for (i, first), (j, second) in combinations(enumerate(summaries), 2):
        a, b = summaries[first], summaries[second]
        # Every pair starts from the same random numbers: its p does not depend on other objectives.
        seeds = _seed_part(a, b, num_resamples, draw([seed, 2]))
        null = flipped[:, i] - flipped[:, j] + seeds
        mean = a.mean - b.mean
        low, high = np.quantile(redrawn[:, i] - redrawn[:, j] + seeds, (0.025, 0.975))
        p = _p_value(null, mean, tolerance=1e-9 * float(np.abs(a.per_query - b.per_query).max()))
        found = Difference(first, second, mean, _error(a, b), float(low), float(high), p, p)
        differences.append(found)
    return _corrected(differences)


def not_distinguishable(
    results: Results, differences: Sequence[Difference], level: float = 0.05
) -> tuple[str, set[str]]:
    """The objective with the highest mean, and those that cannot be told apart from it."""
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, for example 0.05, got {level!r}")
    best, behind = _behind_best(results, differences)
    return best, {found.second for found in behind if found.corrected >= level}


def verdict(
    results: Results, differences: Sequence[Difference], metric: str, level: float = 0.05
) -> str:
    """What can be said about the best objective, in words; p is the corrected one.

    >>> rows = {"a": np.full((1, 40), 50.0), "b": np.full((1, 40), 50.0)}
    >>> print(verdict(rows, compare_all(rows), "R@1"))
    b cannot be told apart from a, which has the highest mean R@1 (50.0). One seed each: this is \
about these very models.
    """
    best, equals = not_distinguishable(results, differences, level)
    _, behind = _behind_best(results, differences)
    beaten = [found for found in behind if found.second not in equals]
    level_with = _listed([found.second for found in behind if found.second in equals])
    mean = f"{np.mean(results[best]):.1f}"
    if beaten:
        sentence = f"{best} beats {_margins(beaten, metric)}"
        sentence += f"; {level_with} cannot be told apart from it." if equals else "."
    elif equals:
        sentence = f"{level_with} cannot be told apart from {best}, "
        sentence += f"which has the highest mean {metric} ({mean})."
    else:
        return f"{best} has {mean} {metric}; there is no other objective to compare it with."
    notes = [f"p is corrected for {len(differences)} comparisons."] if len(differences) > 1 else []
    return " ".join([sentence, *(notes if beaten else []), *_seed_notes(results)])


# The pieces of the test.


@dataclass(frozen=True)
class _Summary:
    """What the test needs of an objective's results."""

    per_query: Floats
    """Mean over the seeds, [queries]."""
    num_seeds: int
    run_squares: float
    """Sum of squares of the run means around their mean."""
    from_interaction: float
    """The part of `run_squares` to expect if runs differ in single queries only."""

    @property
    def mean(self) -> float:
        return float(self.per_query.mean())


def _summary(values: Floats) -> _Summary:
    values = np.asarray(values, np.float64)
    per_query, run_effects = values.mean(0), values.mean(1) - values.mean()
    interaction = float(np.square(values - per_query - run_effects[:, None]).sum())
    num_queries = values.shape[1]
    return _Summary(
        per_query=per_query,
        num_seeds=len(values),
        run_squares=float(np.square(run_effects).sum()),
        from_interaction=interaction / (num_queries - 1) / num_queries,
    )


def _signs(num: int, num_queries: int, rng: np.random.Generator) -> Floats:
    """Random signs, [num, queries]."""
    return rng.integers(0, 2, (num, num_queries), np.int8) * 2.0 - 1.0


def _counts(num: int, num_queries: int, rng: np.random.Generator) -> Floats:
    """How often each query comes up in draws with replacement, [num, queries]."""
    drawn = rng.integers(0, num_queries, (num, num_queries))
    drawn += num_queries * np.arange(num)[:, None]
    counts = np.bincount(drawn.ravel(), minlength=num * num_queries)
    return counts.reshape(num, num_queries).astype(np.float64)


def _resampled_means(
    per_query: Floats,
    num_resamples: int,
    weights: Callable[[int, int, np.random.Generator], Floats],
    rng: np.random.Generator,
) -> Floats:
    """Means of [queries, objectives] under random weights, [resamples, objectives].

    All objectives share the weights, so the difference of two columns is that of a paired resample.
    """
    num_queries = len(per_query)
    rows = max(1, CHUNK // num_queries)
    parts = [
        weights(min(rows, num_resamples - start), num_queries, rng) @ per_query
        for start in range(0, num_resamples, rows)
    ]
    return np.concatenate(parts) / num_queries


def _seed_part(a: _Summary, b: _Summary, num: int, rng: np.random.Generator) -> Floats:
    """What other seeds would add to the difference, [num]; zeros with one seed each."""
    freedom = a.num_seeds + b.num_seeds - 2
    if not freedom:
        return np.zeros(num)
    squares = (a.run_squares + b.run_squares) / rng.chisquare(freedom, num)
    known = (a.from_interaction + b.from_interaction) / freedom
    variance = np.maximum(0, squares - known) * (1 / a.num_seeds + 1 / b.num_seeds)
    return np.asarray(rng.standard_normal(num) * np.sqrt(variance))


def _error(a: _Summary, b: _Summary) -> float:
    """Standard error, from variances: the draws have none that is finite if seeds are few."""
    variance = float(np.var(a.per_query - b.per_query, ddof=1)) / len(a.per_query)
    if freedom := a.num_seeds + b.num_seeds - 2:
        squares = a.run_squares + b.run_squares - a.from_interaction - b.from_interaction
        variance += max(0.0, squares) / freedom * (1 / a.num_seeds + 1 / b.num_seeds)
    return math.sqrt(variance)


def _p_value(null: Floats, observed: float, tolerance: float) -> float:
    """Two-sided. Values equal but for rounding count as equal: hits make many ties."""
    as_far = np.abs(null) >= abs(observed) - tolerance
    return float(1 + as_far.sum()) / (1 + len(null))


def _corrected(differences: Sequence[Difference]) -> list[Difference]:
    if not differences:
        return []
    from scipy.stats import false_discovery_control  # takes half a second to import

    adjusted = false_discovery_control([found.p for found in differences])
    return [replace(d, corrected=float(p)) for d, p in zip(differences, adjusted, strict=True)]


# The words of the verdict.


def _behind_best(
    results: Results, differences: Sequence[Difference]
) -> tuple[str, list[Difference]]:
    """The best objective, and its differences to all others with it as the first, closest first."""
    if not results:
        raise ValueError("there are no results: give those of one objective at least")
    best = max(results, key=lambda name: float(np.mean(results[name])))
    behind = [found for found in differences if found.first == best]
    behind += [_turned(found) for found in differences if found.second == best]
    if {found.second for found in behind} != set(results) - {best}:
        raise ValueError(
            f"differences must hold {best!r} against each of the other {len(results) - 1} "
            f"objectives, got {len(behind)}: make them with compare_all(results)"
        )
    return best, sorted(behind, key=lambda found: found.mean)


def _turned(d: Difference) -> Difference:
    return replace(d, first=d.second, second=d.first, mean=-d.mean, low=-d.high, high=-d.low)


def _margins(beaten: Sequence[Difference], metric: str) -> str:
    """'b by 1.8 ± 0.4 R@1 (p = 0.003), c by 2.5 ± 0.4 and d by 3.1 ± 0.5 (p < 0.001 each)'."""
    margins: list[str] = []
    for p, group in groupby(beaten, key=lambda found: _p_text(found.corrected)):
        same_p = [f"{found.second} by {_margin(found)}" for found in group]
        if not margins:
            same_p[0] += f" {metric}"
        same_p[-1] += f" ({p} each)" if len(same_p) > 1 else f" ({p})"
        margins += same_p
    return _listed(margins)


def _margin(difference: Difference) -> str:
    """'1.8 ± 0.4': as many decimals as the error's first digit needs."""
    error = difference.error
    decimals = max(1, -math.floor(math.log10(error))) if error > 0 else 1
    return f"{difference.mean:.{decimals}f} ± {error:.{decimals}f}"


def _p_text(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _listed(words: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _seed_notes(results: Results) -> Iterator[str]:
    single = [name for name, values in results.items() if len(values) == 1]
    if len(single) == len(results):
        yield "One seed each: this is about these very models."
    elif single:
        yield f"Only one seed of {_listed(single)}: seed noise is taken from the other side."
    if 1 < len(single) < len(results):
        yield "Between two of these, a comparison is about these very models."


def _check(results: Results, num_resamples: int) -> None:
    if num_resamples < 1:
        raise ValueError(f"num_resamples must be 1 or more, got {num_resamples}")
    if not results:
        raise ValueError("there are no results: give those of one objective at least")
    for name, values in results.items():
        shape = np.shape(values)
        if len(shape) != 2:
            raise ValueError(f"results of {name!r} must be [seeds, queries], got {list(shape)}")
        if shape[0] < 1 or shape[1] < 2:
            raise ValueError(
                f"results of {name!r} must hold at least one seed and two queries, "
                f"got {shape[0]} and {shape[1]}"
            )
        if not np.isfinite(values).all():
            bad = int((~np.isfinite(values)).sum())
            raise ValueError(
                f"results of {name!r} have NaN or infinite values in {bad} places: "
                "every query needs a number"
            )
    (first, one), *others = ((name, np.shape(values)[1]) for name, values in results.items())
    for name, other in others:
        if other != one:
            raise ValueError(
                f"{first!r} has {one} queries and {name!r} {other}: "
                "results from different test sets cannot be compared"
            )
