"""TREC run and qrels files, with which ranx, ir_measures or trec_eval can check our numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from torch import Tensor

from gradspace.files import write_atomically
from gradspace.scores.positives import Positives, as_positives
from gradspace.scores.tiles import Scores, as_scores, blocks


def write_trec_run(
    path: str | Path,
    scores: Tensor | Scores,
    query_names: Sequence[str],
    candidate_names: Sequence[str],
    depth: int = 1000,
    tag: str = "gradspace",
) -> None:
    """Write the best `depth` candidates of every query: `query Q0 candidate rank score tag`."""
    source = as_scores(scores)
    _check_names(query_names, candidate_names, source.shape)
    _write(path, _run_lines(source, query_names, candidate_names, depth, tag))


def write_trec_qrels(
    path: str | Path,
    positives: Tensor | Positives,
    query_names: Sequence[str],
    candidate_names: Sequence[str],
) -> None:
    """Write every positive pair: `query 0 candidate 1`."""
    pairs = as_positives(positives)
    _check_names(query_names, candidate_names, pairs.shape)
    query, candidate = pairs.pairs()
    _write(
        path,
        (
            f"{query_names[q]} 0 {candidate_names[c]} 1\n"
            for q, c in zip(query.tolist(), candidate.tolist(), strict=True)
        ),
    )


def _run_lines(
    source: Scores, queries: Sequence[str], candidates: Sequence[str], depth: int, tag: str
) -> Iterator[str]:
    num_queries, num_candidates = source.shape
    height = max(1, (1 << 24) // num_candidates)
    for rows in blocks(num_queries, height):
        best = source.tile(rows, slice(0, num_candidates)).topk(min(depth, num_candidates), dim=1)
        for query, values, indices in zip(
            queries[rows], best.values.tolist(), best.indices.tolist(), strict=True
        ):
            for rank, (value, index) in enumerate(zip(values, indices, strict=True), start=1):
                yield f"{query} Q0 {candidates[index]} {rank} {value!r} {tag}\n"


def _check_names(queries: Sequence[str], candidates: Sequence[str], shape: tuple[int, int]) -> None:
    if (len(queries), len(candidates)) != shape:
        raise ValueError(
            f"got {len(queries)} query names and {len(candidates)} candidate names for "
            f"a score matrix of shape {list(shape)}; give one name per row and per column"
        )
    for name in (*queries, *candidates):
        if not name or any(character.isspace() for character in name):
            raise ValueError(f"TREC names must be non-empty and without spaces, got {name!r}")


def _write(path: str | Path, lines: Iterator[str]) -> None:
    with write_atomically(path) as file:
        file.writelines(lines)
