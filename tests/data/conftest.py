from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests never touch the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADSPACE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
