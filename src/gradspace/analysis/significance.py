"""Significance tests over queries and seeds: is one objective better than another, or just lucky?

A difference between two objectives can arise by chance in two ways: from the queries that happen to
be in the test set, and from the seeds that the models were trained with. Both enter the test and
the interval.

* Queries. If there is no difference, the two objectives' results for a query are exchangeable: the
  difference of their seed means gets random signs (a paired permutation test).
* Seeds. s^2 is the variance of the run means around their objective's mean, pooled over both, with
  nu = (S_a - 1) + (S_b - 1) degrees of freedom. A part m/N of it is not seed noise: runs differ in
  single queries (mean square m of the query x run interaction), which the query part already
  contains. The contribution of the seeds is drawn as z sqrt(max(0, s^2 nu/chi2 - m/N) (1/S_a +
  1/S_b)), with z standard normal and chi2 chi-squared with nu degrees of freedom: few seeds give
  heavy tails, as in Student's t.
* The null values are sums of both parts: p = (1 + number of |null| >= |observed|) / (1 + draws).
* Many comparisons. `corrected` is p after Benjamini and Hochberg (1995). Of the differences called
  real at `corrected` < 0.05, at most about 5% are expected not to be.
* The interval comes from the same test: it holds all differences that the test would not reject at
  the level that results from the correction, 0.05 R/m if R of m differences are real (Benjamini and
  Yekutieli 2005). So it excludes 0 exactly if `corrected` < 0.05. For only two objectives it is the
  95% interval.

With one seed each there is no seed part: p is then about these very models on other queries, not
about their objectives. If one has a single seed, the spread of the other is used for both.

Decisions, based on simulations. Relabelling the runs at random was tried for the seed part: with
three runs each it is 20% too wide in variance, and without subtracting m/N it counts the
interaction twice. Its false alarm rate fell to 1% where 5% are allowed, and with three seeds it
missed 10 to 15 of 100 real differences that the present test finds. Subtracting m/N from s^2 before
chi2 is drawn gave 8% false alarms with two seeds.

The pooled s^2 assumes that objectives are equally sensitive to their seeds. If only one is, three
seeds each still give at most 8% false alarms, but two seeds of a wild objective against five of a
calm one give 24%, and one seed against five 50%: train all with the same number of seeds. Welch's
test repairs most of the 24%, but has clearly less power with two or three seeds each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Results = Mapping[str, Floats]
"""Results by objective name, [seeds, queries] each; higher is better."""

LEVEL = 0.05
"""Corrected p below which a difference is called real."""

CHUNK = 2**21
"""Random numbers held at a time (16 MB as float64)."""


@dataclass(frozen=True)
class Difference:
    """Difference of two objectives' means, first - second, with its uncertainty."""

    first: str
    second: str
    mean: float
    error: float
    """Standard error over queries and seeds."""
    low: float
    """Lower end of the interval, corrected for all comparisons: it excludes 0 if `corrected` <
    LEVEL."""
    high: float
    p: float
    """Two-sided p of this comparison alone."""
    corrected: float
    """p, corrected for all comparisons."""


def compare_all(
    results: Results, *, num_resamples: int = 10_000, seed: int = 0
) -> list[Difference]:
    """Compare all pairs of objectives, in the order given.

    A result is [seeds, queries], for example 100 where a query found its match and 0 elsewhere; the
    mean over everything is the metric. All results have the same queries in the same order.

    >>> hits = np.random.default_rng(0).random((2, 3, 500))
    >>> [found] = compare_all({"a": 100.0 * (hits[0] < 0.6), "b": 100.0 * (hits[1] < 0.4)})
    >>> found.first, found.second, found.low < found.mean < found.high, found.p < 0.05
    ('a', 'b', True, True)
    """
    _check(results, num_resamples)
    names = list(results)
    summaries = [_summary(values) for values in results.values()]
    per_query = np.stack([summary.per_query for summary in summaries], 1)
    draw = np.random.default_rng
    flipped, signs = _flipped_means(per_query, num_resamples, draw([seed, 0]))

    def null(i: int, j: int) -> Floats:
        """Draw differences that arise by chance alone, independent of other objectives."""
        seeds = _seed_part(summaries[i], summaries[j], num_resamples, draw([seed, 2]))
        return flipped[:, i] - flipped[:, j] + seeds

    pairs = list(combinations(range(len(names)), 2))
    ps = [_p_value(null(i, j), summaries[i], summaries[j]) for i, j in pairs]
    corrected = _corrected(ps)
    level = LEVEL * max(1, sum(p < LEVEL for p in corrected)) / max(1, len(pairs))
    found = []
    for (i, j), p, with_others in zip(pairs, ps, corrected, strict=True):
        a, b = summaries[i], summaries[j]
        mean, error = a.mean - b.mean, _error(a, b)
        low, high = _interval(null(i, j), signs, mean, len(per_query), level)
        if with_others >= LEVEL:  # then the interval holds 0, except for rounding
            low, high = min(low, 0.0), max(high, 0.0)
        found.append(Difference(names[i], names[j], mean, error, low, high, p, with_others))
    return found


# --- parts of the test --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Summary:
    """Summary of an objective's results, as the test needs it."""

    per_query: Floats
    """Mean over the seeds, [queries]."""
    num_seeds: int
    run_squares: float
    """Sum of squares of the run means around their mean."""
    from_interaction: float
    """Part of `run_squares` to be expected if runs differ in single queries only."""

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
    """Draw random signs, [num, queries]."""
    return rng.integers(0, 2, (num, num_queries), np.int8) * 2.0 - 1.0


def _flipped_means(
    per_query: Floats, num_resamples: int, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Resample the means of [queries, objectives] with random signs; also return the signs' means.

    The result is [resamples, objectives]. All objectives share the signs, so the difference of two
    columns is that of a paired resample.
    """
    num_queries = len(per_query)
    rows = max(1, CHUNK // num_queries)
    means, of_signs = [], []
    for start in range(0, num_resamples, rows):
        signs = _signs(min(rows, num_resamples - start), num_queries, rng)
        means.append(signs @ per_query / num_queries)
        of_signs.append(signs.mean(1))
    return np.concatenate(means), np.concatenate(of_signs)


def _seed_part(a: _Summary, b: _Summary, num: int, rng: np.random.Generator) -> Floats:
    """Draw what other seeds would add to the difference, [num]; zeros with one seed each."""
    freedom = a.num_seeds + b.num_seeds - 2
    if not freedom:
        return np.zeros(num)
    squares = (a.run_squares + b.run_squares) / rng.chisquare(freedom, num)
    known = (a.from_interaction + b.from_interaction) / freedom
    variance = np.maximum(0, squares - known) * (1 / a.num_seeds + 1 / b.num_seeds)
    return np.asarray(rng.standard_normal(num) * np.sqrt(variance))


def _error(a: _Summary, b: _Summary) -> float:
    """Standard error, from variances: the draws' own is infinite if seeds are few."""
    variance = float(np.var(a.per_query - b.per_query, ddof=1)) / len(a.per_query)
    if freedom := a.num_seeds + b.num_seeds - 2:
        squares = a.run_squares + b.run_squares - a.from_interaction - b.from_interaction
        variance += max(0.0, squares) / freedom * (1 / a.num_seeds + 1 / b.num_seeds)
    return math.sqrt(variance)


def _p_value(null: Floats, a: _Summary, b: _Summary) -> float:
    """Two-sided p; values equal up to rounding count as ties, which are frequent among hits."""
    tolerance = 1e-9 * float(np.abs(a.per_query - b.per_query).max())
    as_far = np.abs(null) >= abs(a.mean - b.mean) - tolerance
    return float(1 + as_far.sum()) / (1 + len(null))


def _corrected(ps: Sequence[float]) -> list[float]:
    """Correct p values for all comparisons; rounded, so that a p of LEVEL is not below it."""
    if not ps:
        return []
    from scipy.stats import false_discovery_control  # takes half a second to import

    return [round(float(p), 12) for p in false_discovery_control(ps)]


def _interval(
    null: Floats, signs: Floats, mean: float, num_queries: int, level: float
) -> tuple[float, float]:
    """Interval of all differences whose p is at least `level`; `signs` has each resample's mean.

    A resample is at least as extreme as the observed mean for the differences x with
    |null - x signs| >= |mean - x|, an interval that holds the mean. If there are too few resamples
    for the level, the result is the widest of these intervals.
    """
    edge = 1 - 2 / num_queries  # signs that are all equal tell nothing about any difference
    signs = np.clip(signs, -edge, edge)
    ends = (mean - null) / (1 - signs), (mean + null) / (1 + signs)
    as_far = math.ceil(level * (1 + len(null)) - 1e-9) - 1
    place = max(as_far, 1) - 1
    low = np.partition(np.minimum(*ends), place)[place]
    high = -np.partition(-np.maximum(*ends), place)[place]
    return float(low), float(high)


def _check(results: Results, num_resamples: int) -> None:
    if num_resamples < 1:
        raise ValueError(f"num_resamples must be 1 or more, got {num_resamples}")
    if not results:
        raise ValueError("there are no results: give those of at least one objective")
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
                "every query needs a finite number"
            )
    (first, one), *others = ((name, np.shape(values)[1]) for name, values in results.items())
    for name, other in others:
        if other != one:
            raise ValueError(
                f"{first!r} has {one} queries and {name!r} {other}: "
                "results from different test sets cannot be compared"
            )
