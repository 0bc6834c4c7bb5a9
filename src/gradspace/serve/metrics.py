"""Metrics of a server, in the text format of Prometheus."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Histogram:
    """Counts of values up to each bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, labels: Mapping[str, str]) -> Iterator[str]:
        so_far = 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            so_far += count
            yield f"{name}_bucket{_labels({**labels, 'le': str(bound)})} {so_far}"
        yield f"{name}_sum{_labels(labels)} {self.total:.6f}"
        yield f"{name}_count{_labels(labels)} {so_far}"


class Metrics:
    """Counts of requests by route and status, their durations, and sizes of the model's batches."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._seconds: dict[str, Histogram] = defaultdict(lambda: Histogram(SECONDS))
        self._batches: dict[str, Histogram] = defaultdict(lambda: Histogram(SIZES))

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        with self._lock:
            self._requests[method, route, status] += 1
            self._seconds[route].add(seconds)

    def batch(self, index: str, size: int) -> None:
        with self._lock:
            self._batches[index].add(size)

    def text(self, waiting: Mapping[str, int]) -> str:
        """Format all metrics; `waiting` is the length of the queue of each index."""
        with self._lock:
            return "".join(f"{line}\n" for line in self._lines(waiting))

    def _lines(self, waiting: Mapping[str, int]) -> Iterator[str]:
        yield from _head("gradspace_requests_total", "counter", "Requests answered.")
        for (method, route, status), count in sorted(self._requests.items()):
            labels = _labels({"method": method, "route": route, "status": str(status)})
            yield f"gradspace_requests_total{labels} {count}"
        yield from _head("gradspace_request_seconds", "histogram", "Time to answer a request.")
        for route, seconds in sorted(self._seconds.items()):
            yield from seconds.lines("gradspace_request_seconds", {"route": route})
        yield from _head("gradspace_batch_size", "histogram", "Requests that shared a batch.")
        for index, sizes in sorted(self._batches.items()):
            yield from sizes.lines("gradspace_batch_size", {"index": index})
        yield from _head("gradspace_queue_length", "gauge", "Requests waiting for the model.")
        for index, length in sorted(waiting.items()):
            yield f"gradspace_queue_length{_labels({'index': index})} {length}"


def _head(name: str, kind: str, about: str) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"


def _labels(labels: Mapping[str, str]) -> str:
    escaped = (
        (name, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n"))
        for name, value in labels.items()
    )
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}"
