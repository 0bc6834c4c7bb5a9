"""From embeddings, or parts, to a file of mined lists, which an interruption only delays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gradspace.mining.lists import MinedLists, save_lists
from gradspace.mining.state import remove_states
from gradspace.processes import any_of, is_first


def mine_to_file(path: Path, mine: Callable[[Path], MinedLists]) -> MinedLists:
    """Mine, save the lists to `path`, and hand them back.

    `mine` takes its `state`, a file beside `path`: what an interrupted mining has done is found
    there by the next one, which writes the same bytes.
    """
    state = path.with_name(f"{path.name}.state")
    lists = mine(state)
    if is_first():
        save_lists(path, lists)
        remove_states(state)
    any_of(False)  # the file is there for all
    return lists
