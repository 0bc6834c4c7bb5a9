"""Verdicts in words on the best objective of a comparison."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from gradspace.analysis.significance import LEVEL, Difference, Results


def not_distinguishable(
    results: Results, differences: Sequence[Difference], level: float = LEVEL
) -> tuple[str, set[str]]:
    """Find the objective with the highest mean, and those not significantly different from it."""
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, for example 0.05, got {level!r}")
    best, behind = _behind_best(results, differences)
    return best, {found.second for found in behind if found.corrected >= level}


def verdict(
    results: Results, differences: Sequence[Difference], metric: str, level: float = LEVEL
) -> str:
    """Describe in words how the best objective compares with the others; p is corrected.

    >>> from gradspace.analysis.significance import compare_all
    >>> rows = {"a": np.full((1, 40), 50.0), "b": np.full((1, 40), 50.0)}
    >>> print(verdict(rows, compare_all(rows), "R@1"))
    b cannot be told apart from a, which has the highest mean R@1 (50.0). One seed each: this is \
about these very models.
    """
    best, behind = _behind_best(results, differences)
    beaten = [found for found in behind if found.corrected < level]
    equals = [found for found in behind if found.corrected >= level]
    mean = f"{np.mean(results[best]):.1f}"
    if beaten:
        said = [f"{best} beats {_margins(beaten, metric)}", *_others(behind, level)]
        sentence = f"{'; '.join(said)}."
    elif equals:
        level_with = _listed([found.second for found in equals])
        sentence = f"{level_with} cannot be told apart from {best}, "
        sentence += f"which has the highest mean {metric} ({mean})."
    else:
        return f"{best} has {mean} {metric}; there is no other objective to compare it with."
    notes = [f"p is corrected for {len(differences)} comparisons."] if len(differences) > 1 else []
    return " ".join([sentence, *(notes if beaten else []), *_seed_notes(results)])


def _others(behind: Sequence[Difference], level: float) -> Iterator[str]:
    """Describe the unbeaten objectives; one whose mean is below a beaten one's needs a reason."""
    first = next(place for place, found in enumerate(behind) if found.corrected < level)
    near = [found.second for found in behind[:first]]
    if near:
        yield f"{_listed(near)} cannot be told apart from it"
    far = [found for found in behind[first:] if found.corrected >= level]
    if far:
        said = [f"{found.second} ({_margin(found)} behind)" for found in far]
        verb = "varies" if len(far) == 1 else "vary"
        yield f"{_listed(said)} {verb} too much to be told apart from it"


def _behind_best(
    results: Results, differences: Sequence[Difference]
) -> tuple[str, list[Difference]]:
    """Find the best objective, and its leads over all others, smallest first."""
    if not results:
        raise ValueError("there are no results: give those of at least one objective")
    best = max(results, key=lambda name: float(np.mean(results[name])))
    behind = [found for found in differences if found.first == best]
    behind += [_turned(found) for found in differences if found.second == best]
    if {found.second for found in behind} != set(results) - {best}:
        raise ValueError(
            f"differences must compare {best!r} with each of the {len(results) - 1} other "
            f"objectives, got {len(behind)}: make them with compare_all(results)"
        )
    return best, sorted(behind, key=lambda found: found.mean)


def _turned(d: Difference) -> Difference:
    return replace(d, first=d.second, second=d.first, mean=-d.mean, low=-d.high, high=-d.low)


def _margins(beaten: Sequence[Difference], metric: str) -> str:
    """Format margins, grouped by p.

    'b by 1.8 ± 0.4 R@1 (p = 0.003), c by 2.5 ± 0.4 and d by 3.1 ± 0.5 (p < 0.001 each)'
    """
    margins: list[str] = []
    for p, group in groupby(beaten, key=lambda found: _p_text(found.corrected)):
        same_p = [f"{found.second} by {_margin(found)}" for found in group]
        if not margins:
            same_p[0] += f" {metric}"
        same_p[-1] += f" ({p} each)" if len(same_p) > 1 else f" ({p})"
        margins += same_p
    return _listed(margins)


def _margin(difference: Difference) -> str:
    """Format '1.8 ± 0.4', with as many decimals as the error's first digit needs."""
    error = difference.error
    decimals = max(1, -math.floor(math.log10(error))) if error > 0 else 1
    return f"{difference.mean:.{decimals}f} ± {error:.{decimals}f}"


def _p_text(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _listed(words: Sequence[str]) -> str:
    """Join words: 'a', 'a and b', 'a, b and c'."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _seed_notes(results: Results) -> Iterator[str]:
    single = [name for name, values in results.items() if len(values) == 1]
    if len(single) == len(results):
        yield "One seed each: this is about these very models."
    elif single:
        yield f"Only one seed of {_listed(single)}: seed noise is taken from the other side."
    if 1 < len(single) < len(results):
        yield "Between two of these, a comparison is about these very models."
