"""Mining of embeddings, or parts, into a file of lists, which can be interrupted and resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gradspace.mining.lists import MinedLists, save_lists
from gradspace.mining.state import remove_states
from gradspace.processes import any_of, is_first


def mine_to_file(path: Path, mine: Callable[[Path], MinedLists]) -> MinedLists:
    """Mine, save the lists to `path`, and return them.

    `mine` gets the path of its `state`, a file beside `path`: the next mining resumes from there,
    and writes the same bytes.
    """
    state = path.with_name(f"{path.name}.state")
    lists = mine(state)
    if is_first():
        save_lists(path, lists)
        remove_states(state)
    any_of(False)  # wait until the file exists for all processes
    return lists
