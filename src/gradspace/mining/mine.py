"""From embeddings, or parts, to a file of mined lists, which an interruption only delays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradspace.mining.lists import MinedLists, save_lists
from gradspace.mining.state import remove_states
from gradspace.mining.top import mine_exact
from gradspace.processes import any_of, is_first
from gradspace.scoring import Found


def mine_to_file(path: Path, found: Found, **options: Any) -> MinedLists:
    """Mine exactly, save the lists to `path`, and hand them back.

    `options` are those of `mine_exact`, except `state`, a file beside `path`: what an interrupted
    mining has done is found there by the next one, which writes the same bytes.
    """
    state = path.with_name(f"{path.name}.state")
    lists = mine_exact(found, state=state, **options)
    if is_first():
        save_lists(path, lists)
        remove_states(state)
    any_of(False)  # the file is there for all
    return lists
