"""Differences between objectives, against loops, scipy, and simulations whose answer is known."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray

from gradspace.analysis import significance
from gradspace.analysis.significance import Difference, compare_all
from gradspace.analysis.verdicts import not_distinguishable, verdict

Floats = NDArray[np.float64]


# The pieces, against loops.


def hits(*shape: int, seed: int = 0, rate: float = 0.5) -> Floats:
    return np.where(np.random.default_rng(seed).random(shape) < rate, 100.0, 0.0)


def loop_summary(values: list[list[float]]) -> tuple[list[float], float, float]:
    """Means per query, squares of the run means, and what the interaction adds to these."""
    num_seeds, num_queries = len(values), len(values[0])
    runs = [sum(row) / num_queries for row in values]
    queries = [sum(row[q] for row in values) / num_seeds for q in range(num_queries)]
    mean = sum(runs) / num_seeds
    run_squares = sum((run - mean) ** 2 for run in runs)
    interaction = 0.0
    for s in range(num_seeds):
        for q in range(num_queries):
            interaction += (values[s][q] - runs[s] - queries[q] + mean) ** 2
    return queries, run_squares, interaction / (num_queries - 1) / num_queries


@pytest.mark.parametrize("num_seeds", [1, 2, 5])
def test_summary_equals_the_loop(num_seeds: int) -> None:
    values = hits(num_seeds, 30)
    found = significance._summary(values)
    queries, run_squares, from_interaction = loop_summary(values.tolist())
    assert found.per_query.tolist() == pytest.approx(queries)
    assert found.run_squares == pytest.approx(run_squares)
    assert found.from_interaction == pytest.approx(from_interaction, abs=1e-12)


def test_flips_in_chunks_equal_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(significance, "CHUNK", 100)
    per_query = hits(17, 3)
    drawn: list[Floats] = []
    draw = significance._signs

    def remembered(num: int, num_queries: int, rng: np.random.Generator) -> Floats:
        drawn.append(draw(num, num_queries, rng))
        return drawn[-1]

    monkeypatch.setattr(significance, "_signs", remembered)
    found, signs = significance._flipped_means(per_query, 23, np.random.default_rng(0))
    assert [len(chunk) for chunk in drawn] == [5, 5, 5, 5, 3]
    for r, row in enumerate(np.concatenate(drawn).tolist()):
        assert signs[r] == pytest.approx(sum(row) / 17)
        for o in range(3):
            total = sum(sign * per_query[q, o] for q, sign in enumerate(row))
            assert found[r, o] == pytest.approx(total / 17)


def test_signs_are_fair() -> None:
    signs = significance._signs(4000, 9, np.random.default_rng(0))
    assert set(np.unique(signs)) == {-1.0, 1.0}
    assert np.abs(signs.mean(0)).max() < 4 / math.sqrt(4000)


@pytest.mark.parametrize("level", [0.05, 0.004])
@pytest.mark.parametrize("gain", [-20, 0, 3])
def test_the_interval_holds_what_the_test_would_not_reject(gain: float, level: float) -> None:
    """A difference x is tested as that of 0 is, after x is taken from every query."""
    rng = np.random.default_rng(3)
    num_queries, num = 40, 999
    differences = rng.normal(gain, 30, num_queries)
    signs, seeds = significance._signs(num, num_queries, rng), rng.normal(0, 2, num)
    mean = float(differences.mean())

    def p_of(x: float) -> float:
        null = [
            sum(s * (d - x) for s, d in zip(row, differences, strict=True)) / num_queries + seed
            for row, seed in zip(signs.tolist(), seeds.tolist(), strict=True)
        ]
        return float(1 + sum(abs(value) >= abs(mean - x) for value in null)) / (1 + num)

    null = signs @ differences / num_queries + seeds
    low, high = significance._interval(null, signs.mean(1), mean, num_queries, level)
    assert low < mean < high
    for inside, outside in ((low + 1e-6, low - 1e-6), (high - 1e-6, high + 1e-6)):
        assert p_of(inside) >= level > p_of(outside)


@pytest.mark.parametrize("num_seeds", [(2, 2), (1, 4), (5, 3)])
def test_seed_part_equals_the_loop(num_seeds: tuple[int, int]) -> None:
    arrays = [hits(s, 40, seed=s) for s in num_seeds]
    a, b = (significance._summary(values) for values in arrays)
    found = significance._seed_part(a, b, 50, np.random.default_rng(3))
    (_, run_a, both_a), (_, run_b, both_b) = (loop_summary(v.tolist()) for v in arrays)
    freedom = sum(num_seeds) - 2
    rng = np.random.default_rng(3)
    chi2, normal = rng.chisquare(freedom, 50).tolist(), rng.standard_normal(50).tolist()
    for value, c, z in zip(found.tolist(), chi2, normal, strict=True):
        spread = (run_a + run_b) / freedom * (freedom / c) - (both_a + both_b) / freedom
        expected = z * math.sqrt(max(0, spread) * (1 / num_seeds[0] + 1 / num_seeds[1]))
        assert value == pytest.approx(expected, abs=1e-9)


# Against scipy, where one of the two sources of chance is absent.


@pytest.mark.parametrize("seed", range(5))
def test_one_seed_is_the_paired_permutation_test(seed: int) -> None:
    a, b = hits(1, 11, seed=seed, rate=0.8), hits(1, 11, seed=seed + 100, rate=0.4)
    exact = scipy.stats.permutation_test(
        (a[0] - b[0],), np.mean, permutation_type="samples", n_resamples=np.inf
    ).pvalue
    [found] = compare_all({"a": a, "b": b}, num_resamples=50_000)
    assert found.p == pytest.approx(exact, abs=4 * 0.5 / math.sqrt(50_000))


@pytest.mark.parametrize("num_seeds", [(3, 3), (1, 4), (5, 2), (1, 2)])
@pytest.mark.slow
def test_without_query_noise_it_is_the_t_test(num_seeds: tuple[int, int]) -> None:
    """Runs that are alike in all queries; a single run borrows the spread of the others."""
    rng = np.random.default_rng(1)
    a, b = (rng.normal(size=s) + shift for s, shift in zip(num_seeds, (2, 0), strict=True))
    flat = {"a": np.tile(a[:, None], 3000), "b": np.tile(b[:, None], 3000)}
    [found] = compare_all(flat, num_resamples=40_000)
    test = scipy.stats.ttest_ind(a, b)
    assert found.p == pytest.approx(test.pvalue, abs=0.01)
    assert found.error == pytest.approx(found.mean / test.statistic)
    interval = test.confidence_interval()
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=0.1)


def test_interval_of_one_seed_is_near_the_bootstrap() -> None:
    a, b = hits(1, 300, seed=1, rate=0.6), hits(1, 300, seed=2)
    [found] = compare_all({"a": a, "b": b})
    data = (a[0] - b[0],)
    other = scipy.stats.bootstrap(
        data, np.mean, method="percentile", n_resamples=10_000, rng=np.random.default_rng(0)
    )
    assert found.low == pytest.approx(other.confidence_interval.low, abs=0.5)
    assert found.high == pytest.approx(other.confidence_interval.high, abs=0.5)
    assert found.error == pytest.approx(other.standard_error, rel=0.05)


def test_correction_is_benjamini_hochberg() -> None:
    results = {str(k): hits(1, 200, seed=k, rate=0.4 + 0.04 * k) for k in range(5)}
    differences = compare_all(results, num_resamples=999)
    ordered = sorted(differences, key=lambda found: found.p)
    smallest = 1.0
    for rank in range(len(ordered), 0, -1):
        smallest = min(smallest, ordered[rank - 1].p * len(ordered) / rank)
        assert ordered[rank - 1].corrected == pytest.approx(smallest)


@pytest.mark.parametrize("num_seeds", [1, 3])
def test_an_interval_leaves_out_zero_where_the_difference_is_called_real(num_seeds: int) -> None:
    rng = np.random.default_rng(5)
    called = []
    for _ in range(60):
        rates = rng.choice([0.5, 0.55, 0.6, 0.7], 4)
        values = {
            str(k): np.where(rng.random((num_seeds, 80)) < rate, 100.0, 0.0)
            for k, rate in enumerate(rates)
        }
        for found in compare_all(values, num_resamples=999):
            assert (found.low <= 0 <= found.high) == (found.corrected >= significance.LEVEL)
            assert found.low < found.mean < found.high
            called.append(found.corrected < significance.LEVEL)
    assert 0.1 < np.mean(called) < 0.9


# Simulations: a hit is a latent score above zero.


@dataclass(frozen=True)
class World:
    """Where results come from: hits = difficulty + objective x query + run + run x query > 0."""

    num_seeds: tuple[int, ...] = (3, 3)
    run_noise: float = 0.0
    """Standard deviation of what a seed adds to all queries of a run."""
    gain: float = 0.0
    """What the first objective is better by."""
    num_queries: int = 200

    def draw(self, rng: np.random.Generator) -> dict[str, Floats]:
        difficulty = rng.normal(size=self.num_queries)
        results: dict[str, Floats] = {}
        for name, num_seeds in zip("abcdef", self.num_seeds, strict=False):
            of_query = difficulty + 0.5 * rng.normal(size=self.num_queries)
            of_run = self.run_noise * rng.normal(size=(num_seeds, 1))
            both = 0.5 * rng.normal(size=(num_seeds, self.num_queries))
            gain = 0 if results else self.gain
            results[name] = np.where(of_query + of_run + both + gain > 0, 100.0, 0.0)
        return results

    @property
    def truth(self) -> float:
        """The difference of the first two over all queries and all seeds."""
        spread = math.sqrt(1 + 0.25 + 0.25 + self.run_noise**2)
        return 100 * (float(scipy.stats.norm.cdf(self.gain / spread)) - 0.5)


def simulate(world: World, num: int = 600) -> list[list[Difference]]:
    rng = np.random.default_rng(7)
    return [compare_all(world.draw(rng), num_resamples=999) for _ in range(num)]


def rate_below(level: float, found: list[list[Difference]]) -> float:
    return sum(d.p < level for [d] in found) / len(found)


def coverage(world: World, found: list[list[Difference]]) -> float:
    return sum(d.low <= world.truth <= d.high for [d] in found) / len(found)


# With three seeds, the queries make a difference vary by 2.6 points; run noise of 0.03, 0.1 and 0.4
# by 0.8, 2.6 and 9.9 points: below, equal, above.
@pytest.mark.parametrize(
    ("num_seeds", "run_noise"),
    [((1, 1), 0.0)]
    + [((s, s), noise) for s in (3, 5) for noise in (0.0, 0.03, 0.1, 0.4)]
    + [((2, 2), 0.1), ((1, 4), 0.1), ((2, 5), 0.4)],
)
@pytest.mark.slow
def test_false_alarms_and_coverage_without_a_difference(
    num_seeds: tuple[int, int], run_noise: float
) -> None:
    world = World(num_seeds, run_noise)
    found = simulate(world)
    assert 0.01 < rate_below(0.05, found) < 0.07
    assert coverage(world, found) >= 0.92


@pytest.mark.parametrize("run_noise", [0.03, 0.1, 0.4])
def test_coverage_with_a_difference(run_noise: float) -> None:
    world = World(run_noise=run_noise, gain=0.5)
    assert coverage(world, simulate(world, 200)) >= 0.92


def test_queries_alone_give_false_alarms() -> None:
    """Why seeds are in the test: the same results, as if the seed means were one model each."""
    rng = np.random.default_rng(7)
    naive = []
    for _ in range(200):
        results = World(run_noise=0.4).draw(rng)
        means = {name: values.mean(0, keepdims=True) for name, values in results.items()}
        naive.append(compare_all(means, num_resamples=999))
    assert rate_below(0.05, naive) > 0.4


@pytest.mark.parametrize("run_noise", [0.0, 0.1])
@pytest.mark.slow
def test_families_of_equal_objectives_rarely_alarm(run_noise: float) -> None:
    families = simulate(World(num_seeds=(3,) * 6, run_noise=run_noise), 300)
    alarms = sum(any(d.corrected < 0.05 for d in family) for family in families)
    assert alarms / len(families) <= 0.07
    uncorrected = sum(any(d.p < 0.05 for d in family) for family in families)
    assert uncorrected > 2 * alarms  # what the correction is for


@pytest.mark.parametrize(
    ("num_seeds", "run_noise", "gain", "at_least"),
    [(1, 0.0, 0.6, 0.9), (3, 0.03, 0.6, 0.95), (5, 0.1, 0.6, 0.95), (3, 0.4, 0.6, 0.2)],
)
def test_real_differences_are_found(
    num_seeds: int, run_noise: float, gain: float, at_least: float
) -> None:
    found = simulate(World((num_seeds, num_seeds), run_noise, gain), 150)
    assert rate_below(0.05, found) > at_least
    assert all(d.mean > 0 for [d] in found if d.p < 0.05)


# The public functions.


def test_order_and_repeatability() -> None:
    results = World(num_seeds=(3, 1, 2)).draw(np.random.default_rng(0))
    found = compare_all(results, num_resamples=500)
    assert [(d.first, d.second) for d in found] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert found == compare_all(results, num_resamples=500)
    assert found != compare_all(results, num_resamples=500, seed=1)
    for d in found:
        assert d.mean == pytest.approx(results[d.first].mean() - results[d.second].mean())
        assert d.p <= d.corrected


def test_p_does_not_depend_on_other_objectives() -> None:
    results = World(num_seeds=(3, 3, 3)).draw(np.random.default_rng(0))
    of_all = compare_all(results, num_resamples=500)[0]
    [alone] = compare_all({name: results[name] for name in "ab"}, num_resamples=500)
    assert alone.p == of_all.p


@pytest.mark.parametrize("num_seeds", [1, 3])
def test_identical_results(num_seeds: int) -> None:
    same = hits(num_seeds, 50)
    results = {"a": same, "b": same.copy()}
    [found] = compare_all(results, num_resamples=99)
    assert (found.mean, found.p, found.corrected) == (0, 1, 1)
    assert not_distinguishable(results, [found]) == ("a", {"b"})


def made(**means: float) -> dict[str, Floats]:
    """Two seeds with hardly any noise around these means."""
    noise = np.array([[0.01, -0.01], [-0.01, 0.01]]).repeat(50, 1)
    return {name: mean + noise for name, mean in means.items()}


def differing(first: str, second: str, mean: float, error: float, p: float) -> Difference:
    return Difference(first, second, mean, error, mean - 2 * error, mean + 2 * error, p, p)


def test_not_distinguishable_looks_at_both_sides() -> None:
    results = made(worst=1, best=3, close=2.9)
    differences = [
        differing("worst", "best", -2, 0.1, 0.001),
        differing("worst", "close", -1.9, 0.1, 0.001),
        differing("best", "close", 0.1, 0.1, 0.3),
    ]
    assert not_distinguishable(results, differences) == ("best", {"close"})
    assert not_distinguishable(results, differences, level=0.0005) == ("best", {"close", "worst"})
    with pytest.raises(ValueError, match=r"'best' with each of the 2 other .* compare_all"):
        not_distinguishable(results, differences[:2])
    with pytest.raises(ValueError, match="level must be between 0 and 1"):
        not_distinguishable(results, differences, level=5)


def test_verdict() -> None:
    results = made(triplet=40, circle=41.8, nca=41.5)
    differences = [
        differing("triplet", "circle", -1.8, 0.4, 0.003),
        differing("triplet", "nca", -1.5, 0.4, 0.004),
        differing("circle", "nca", 0.3, 0.4, 0.4),
    ]
    assert verdict(results, differences, "R@1 image->text") == (
        "circle beats triplet by 1.8 ± 0.4 R@1 image->text (p = 0.003); "
        "nca cannot be told apart from it. p is corrected for 3 comparisons."
    )


def test_verdict_of_many() -> None:
    results = made(a=50, b=47, c=48, d=49, e=46, f=49.5, g=49.6)
    ps = {"b": 0.0001, "c": 0.0002, "d": 0.01, "e": 0.0001, "f": 0.2, "g": 0.4}
    differences = [
        differing("a", name, 50 - float(results[name].mean()), 0.04, p) for name, p in ps.items()
    ]
    assert verdict(results, differences, "R@1") == (
        "a beats d by 1.00 ± 0.04 R@1 (p = 0.010), c by 2.00 ± 0.04, b by 3.00 ± 0.04 and "
        "e by 4.00 ± 0.04 (p < 0.001 each); g and f cannot be told apart from it. "
        "p is corrected for 6 comparisons."
    )


def test_a_verdict_says_why_one_further_behind_is_not_beaten() -> None:
    results = made(best=368, near=365, triplet=331, worse=320, worst=311)
    differences = [
        differing("best", "near", 3, 2, 0.2),
        differing("best", "triplet", 37, 2.8, 0.018),
        differing("best", "worse", 48, 14.8, 0.08),
    ]
    four = {name: results[name] for name in ("best", "near", "triplet", "worse")}
    assert verdict(four, differences, "rsum") == (
        "best beats triplet by 37.0 ± 2.8 rsum (p = 0.018); near cannot be told apart from it; "
        "worse (48.0 ± 14.8 behind) varies too much to be told apart from it. "
        "p is corrected for 3 comparisons."
    )
    del results["near"]
    more = [*differences[1:], differing("worst", "best", -57, 20, 0.09)]
    assert verdict(results, more, "rsum") == (
        "best beats triplet by 37.0 ± 2.8 rsum (p = 0.018); worse (48.0 ± 14.8 behind) and worst "
        "(57.0 ± 20.0 behind) vary too much to be told apart from it. "
        "p is corrected for 3 comparisons."
    )


def test_verdict_of_two_needs_no_correction() -> None:
    results = made(a=50, b=47)
    assert verdict(results, [differing("a", "b", 3, 0, 0.0001)], "R@1") == (
        "a beats b by 3.0 ± 0.0 R@1 (p < 0.001)."
    )


def test_verdict_without_differences() -> None:
    results = made(a=50, b=50.1)
    assert verdict(results, [differing("a", "b", -0.1, 0.4, 0.8)], "R@1") == (
        "a cannot be told apart from b, which has the highest mean R@1 (50.1)."
    )
    alone = made(a=50)
    assert compare_all(alone) == []
    expected = "a has 50.0 R@1; there is no other objective to compare it with."
    assert verdict(alone, [], "R@1") == expected


def test_verdict_names_single_seeds() -> None:
    results = {name: hits(1, 50, seed=k) for k, name in enumerate("abc")}
    very = "One seed each: this is about these very models."
    assert verdict(results, compare_all(results, num_resamples=99), "R@1").endswith(very)
    results["c"] = hits(3, 50)
    found = verdict(results, compare_all(results, num_resamples=99), "R@1")
    assert "Only one seed of a and b: seed noise is taken from the other side." in found
    assert found.endswith("Between two of these, a comparison is about these very models.")


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ({}, "there are no results"),
        ({"a": np.zeros(5)}, r"'a' must be \[seeds, queries\], got \[5\]"),
        ({"a": np.zeros((0, 5))}, "'a' must hold at least one seed and two queries, got 0 and 5"),
        ({"a": np.zeros((2, 1))}, "at least one seed and two queries, got 2 and 1"),
        ({"a": np.array([[0, math.nan]])}, "'a' have NaN or infinite values in 1 places"),
        (
            {"a": np.zeros((1, 500)), "b": np.zeros((1, 1000))},
            "'a' has 500 queries and 'b' 1000: results from different test sets",
        ),
    ],
)
def test_bad_results(results: dict[str, Floats], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare_all(results)


def test_bad_settings() -> None:
    with pytest.raises(ValueError, match="num_resamples must be 1 or more, got 0"):
        compare_all({"a": np.zeros((1, 5))}, num_resamples=0)
    with pytest.raises(ValueError, match="there are no results"):
        verdict({}, [], "R@1")
