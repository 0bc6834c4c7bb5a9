"""The reference files: where they come from, and that they hold numbers only."""

from __future__ import annotations

import pytest
from published import authors, reference
from published.make_references import REFERENCES
from safetensors import safe_open

from gradspace.tensor_files import load_tensors

COMMITS = {r.commit: r for r in vars(authors).values() if isinstance(r, authors.Repository)}


def test_there_is_a_file_for_every_maker() -> None:
    assert sorted(reference.names()) == sorted(REFERENCES)


@pytest.mark.parametrize("name", REFERENCES)
def test_a_file_is_small_and_says_which_code_computed_it(name: str) -> None:
    path = reference.FOLDER / f"{name}.safetensors"
    assert path.stat().st_size <= reference.LARGEST
    tensors, record = load_tensors(path)
    assert tensors
    assert record["what"]
    for source in record["computed by"]:
        assert source["repository"] == COMMITS[source["commit"]].address
        assert source["files"]
    with safe_open(path, framework="pt") as file:
        assert set(file.metadata()) == {"record"}
