"""Metrics of a run by name: `i2t R@1`, `t2i median rank`, `rsum`, `i2t C^q`, `cross rank 1`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from gradspace.analysis.cocos import Cocos
from gradspace.metrics import METRICS, DirectionReport, RetrievalReport
from gradspace.parameters import suggestion

DIRECTIONS = {"i2t": "image_to_text", "t2i": "text_to_image"}
ARROWS = {"i2t": "image → text", "t2i": "text → image"}
KS = (1, 5, 10)
RECALLS = tuple(f"{way} R@{k}" for way in DIRECTIONS for k in KS)
BY_TEXT = tuple(f"{name} by text" for name in (*RECALLS, "rsum"))
"""Metrics in which captions of other images count as right if they are equal word for word."""
SYMBOLS = {count.metadata["symbol"]: count.name for count in fields(Cocos)}
COCOS = tuple(f"{way} {symbol}" for way in DIRECTIONS for symbol in SYMBOLS)
COCOS_SPREAD = "COCOS: mean ± standard deviation over batches, averaged over seeds"
"""Meaning of ± in every table of COCOS."""
COCOS_LEGEND = (
    "C^q contributing negatives per query, C^B per batch, C^0 queries without any, "
    "W- and W+ weight on negatives and positives, C_eff effective number of negatives."
)
SECONDS = "seconds per batch"
CROSS = "cross rank"
"""Prefix of an interval of ranks: the percentage of pairs whose cross rank is in it."""


def check_metric(name: str) -> None:
    """Raise a ValueError unless a metric of this name exists."""
    others = [f"{way} {name}" for way in DIRECTIONS for name in ("average", *METRICS)]
    known = (*RECALLS, *others, "rsum", *BY_TEXT, *COCOS, SECONDS, CROSS)
    if name not in known and not name.startswith(f"{CROSS} "):
        raise ValueError(f"unknown metric {name!r}; {suggestion(name, known, 'there are')}")


def retrieval_metrics(report: RetrievalReport) -> dict[str, float]:
    """Name every number of a report."""
    found: dict[str, float] = {}
    for way, direction in DIRECTIONS.items():
        values: DirectionReport = getattr(report, direction)
        found |= {f"{way} R@{k}": values.recall[k] for k in values.recall}
        found[f"{way} average"] = values.average_recall
        found |= {f"{way} {name}": value for name, value in values.metrics.items()}
    total = sum(report.cross_rank.values())
    cross = {f"{CROSS} {ranks}": 100 * n / total for ranks, n in report.cross_rank.items()}
    return {**found, "rsum": report.rsum, **cross}


def metrics_by_text(report: RetrievalReport) -> dict[str, float]:
    """Name recalls and rsum of a report that counts equal texts as right."""
    plain = retrieval_metrics(report)
    return {name: plain[name.removesuffix(" by text")] for name in BY_TEXT}


def decimals(metric: str) -> int:
    """Return the number of decimals of a metric in tables."""
    name = metric.partition(" ")[2]
    if name in METRICS:
        return METRICS[name].decimals
    precise = metric in COCOS and not metric.endswith(("C^B", "C^0"))
    return 3 if metric == SECONDS else 2 if precise else 1


def is_share(metric: str) -> bool:
    """Whether a metric is measured in [0, 1], and shown in percent like recalls."""
    name = metric.partition(" ")[2]
    return name in METRICS and METRICS[name].share


def cocos_metrics(counts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Convert direction -> count -> value to `i2t C^q` -> value."""
    return {
        f"{way} {symbol}": counts[direction][name]
        for way, direction in DIRECTIONS.items()
        for symbol, name in SYMBOLS.items()
    }
